//! What a contender has made of a lab: joined guests, and the processes that join them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::policy::Policy;
use super::scratch::Scratch;
use crate::process::{self, Process};
use crate::{Error, Result, Stop};

/// How long an answer to an inquiry may take.
const INQUIRY_LIMIT: Duration = Duration::from_secs(2);

/// Joined guests, and the processes that join them. Dropping it ends the processes; devices end with the lab.
#[derive(Debug)]
pub struct Attachment {
    // Processes first: they use the files in the directory, and devices of guests.
    processes: Vec<Process>,
    _scratch: Option<Scratch>,
    guest_mtu: u16,
    inquiries: Vec<Inquiry>,
    controls: Vec<PathBuf>,
    policy: Option<Policy>,
}

/// A program that tells what a running process knows of itself.
#[derive(Debug)]
struct Inquiry {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Attachment {
    pub(super) fn new(processes: Vec<Process>, scratch: Option<Scratch>, guest_mtu: u16) -> Self {
        let (inquiries, controls) = (Vec::new(), Vec::new());
        Self { processes, _scratch: scratch, guest_mtu, inquiries, controls, policy: None }
    }

    /// The MTU of the guests, in bytes.
    pub fn guest_mtu(&self) -> u16 {
        self.guest_mtu
    }

    /// # Errors
    /// [`Error::Process`](crate::Error::Process) when one of the processes has ended.
    pub fn check(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::check_running)
    }

    /// The processes are daemons of `weft` with these control sockets.
    pub(super) fn with_daemons(self, weft: &Path, controls: Vec<PathBuf>) -> Self {
        let inquiry = |control: &PathBuf| {
            let arguments = vec!["show".into(), "--control".into(), control.into()];
            Inquiry { program: weft.to_owned(), arguments }
        };
        Self { inquiries: controls.iter().map(inquiry).collect(), controls, ..self }
    }

    pub(super) fn with_policy(self, policy: Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// The router and the lists of weft's network file.
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    /// The control socket of the daemon of host `host`, from 0.
    pub(crate) fn control(&self, host: usize) -> Option<&Path> {
        self.controls.get(host).map(PathBuf::as_path)
    }

    /// What the processes printed last and what they count, for whoever has to find out why frames do not arrive.
    pub fn testimony(&self, stop: &Stop) -> String {
        let printed = self.processes.iter().map(|p| (p.name().to_owned(), p.output_tail()));
        let asked = self.inquiries.iter().map(|inquiry| inquiry.ask(stop));
        printed
            .chain(asked)
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| format!("{name} says:\n{text}"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Adds to `error` what the contender's processes have to say.
    pub fn explain(&self, error: Error, stop: &Stop) -> Error {
        let said = self.testimony(stop);
        if said.is_empty() { error } else { Error::Traffic(format!("{error}\n{said}")) }
    }

    /// Ends the processes: those of one host before those of the next, or daemons of weft, which are all alike, at the same time.
    ///
    /// # Errors
    /// The first [`Error::Process`](crate::Error::Process) of those that did not end by themselves or reported failure; all are ended.
    pub fn stop(mut self) -> Result<()> {
        if !self.controls.is_empty() {
            self.processes.iter_mut().for_each(Process::end_soon);
        }
        self.processes.into_iter().map(Process::stop).fold(Ok(()), Result::and)
    }
}

impl Inquiry {
    /// The command as it would be typed, and its answer.
    fn ask(&self, stop: &Stop) -> (String, String) {
        let program = self.program.file_name().unwrap_or(self.program.as_os_str());
        let words = [program].into_iter().chain(self.arguments.iter().map(OsString::as_os_str));
        let name = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        let answer = process::run(&name, command, INQUIRY_LIMIT, stop);
        (name, answer.unwrap_or_else(|error| error.to_string()))
    }
}
