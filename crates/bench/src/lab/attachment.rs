//! The guests of the lab (two hosts and their guests, as network namespaces) that a contender (a
//! switch to compare) has connected, and the processes of the contender.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::policy::RoutedSetup;
use super::scratch::Scratch;
use crate::process::{self, Process};
use crate::{Error, Result, Stop};

/// How long a diagnostic command may take.
const DIAGNOSTIC_LIMIT: Duration = Duration::from_secs(2);

/// The connected guests, and the contender's processes that forward between them. Dropping an
/// attachment ends the processes. The lab removes the devices when it ends.
#[derive(Debug)]
pub struct Attachment {
    // Dropped first: the processes use the files in the directory, and hold devices of guests.
    processes: Vec<Process>,
    _scratch: Option<Scratch>,
    guest_mtu: u16,
    diagnostic_commands: Vec<DiagnosticCommand>,
    controls: Vec<PathBuf>,
    routed_setup: Option<RoutedSetup>,
}

/// A command that reports the state of a running process.
#[derive(Debug)]
struct DiagnosticCommand {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Attachment {
    pub(super) fn new(processes: Vec<Process>, scratch: Option<Scratch>, guest_mtu: u16) -> Self {
        let (diagnostic_commands, controls) = (Vec::new(), Vec::new());
        Self {
            processes,
            _scratch: scratch,
            guest_mtu,
            diagnostic_commands,
            controls,
            routed_setup: None,
        }
    }

    /// The MTU of the guests, in bytes.
    pub fn guest_mtu(&self) -> u16 {
        self.guest_mtu
    }

    /// Checks that all processes of the contender are running.
    ///
    /// # Errors
    /// [`Error::Process`] when one of them has ended.
    pub fn check_running(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::check_running)
    }

    /// Marks the processes as daemons of `weft` with these control sockets.
    pub(super) fn with_daemons(self, weft: &Path, controls: Vec<PathBuf>) -> Self {
        let diagnostic = |control: &PathBuf| {
            let arguments = vec!["show".into(), "--control".into(), control.into()];
            DiagnosticCommand { program: weft.to_owned(), arguments }
        };
        Self { diagnostic_commands: controls.iter().map(diagnostic).collect(), controls, ..self }
    }

    pub(super) fn with_routed_setup(self, setup: RoutedSetup) -> Self {
        Self { routed_setup: Some(setup), ..self }
    }

    /// The logical router and the ACLs, if weft has any in this lab.
    pub fn routed_setup(&self) -> Option<&RoutedSetup> {
        self.routed_setup.as_ref()
    }

    /// The control socket of weft's daemon on host `host`, counted from 0.
    pub(crate) fn control(&self, host: usize) -> Option<&Path> {
        self.controls.get(host).map(PathBuf::as_path)
    }

    /// The last output and the counters of the processes. They show why frames do not arrive.
    pub fn diagnostics(&self, stop: &Stop) -> String {
        let printed = self.processes.iter().map(|p| (p.name().to_owned(), p.output_tail()));
        let command_outputs =
            self.diagnostic_commands.iter().map(|diagnostic| diagnostic.ask(stop));
        printed
            .chain(command_outputs)
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| format!("{name} says:\n{text}"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Adds the diagnostics of the contender's processes to the text of `error`. Callers match
    /// interruptions and missing requirements by kind, so these stay unchanged.
    pub fn with_diagnostics(&self, error: Error, stop: &Stop) -> Error {
        if error.is_interrupted() || error.is_missing() {
            return error;
        }
        let output = self.diagnostics(stop);
        if output.is_empty() { error } else { Error::Other(format!("{error}\n{output}")) }
    }

    /// Ends the processes one after another. Daemons of weft do not depend on each other, so they
    /// get SIGTERM at the same time.
    ///
    /// # Errors
    /// The first [`Error::Process`] of a process that had to be killed or reported failure. All
    /// processes are ended.
    pub fn stop(mut self) -> Result<()> {
        if !self.controls.is_empty() {
            self.processes.iter_mut().for_each(Process::end_soon);
        }
        self.processes.into_iter().map(Process::stop).fold(Ok(()), Result::and)
    }
}

impl DiagnosticCommand {
    /// The command line and its output.
    fn ask(&self, stop: &Stop) -> (String, String) {
        let program = self.program.file_name().unwrap_or(self.program.as_os_str());
        let words = [program].into_iter().chain(self.arguments.iter().map(OsString::as_os_str));
        let name = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        let answer = process::run(&name, command, DIAGNOSTIC_LIMIT, stop);
        (name, answer.unwrap_or_else(|error| error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagnostics_are_added_when_the_kind_of_the_error_does_not_matter() {
        let (weft, control) = (Path::new("/no-such-weft"), PathBuf::from("h1.sock"));
        let attachment = Attachment::new(Vec::new(), None, 1500).with_daemons(weft, vec![control]);
        let stop = Stop::new();
        let text = attachment.with_diagnostics(Error::Other("no reply".into()), &stop).to_string();
        assert!(text.starts_with("no reply\nno-such-weft show"), "{text}");
        assert!(attachment.with_diagnostics(Error::Interrupted, &stop).is_interrupted());
        let missing = Error::Missing { what: "no weft".into(), how: "build it".into() };
        assert!(attachment.with_diagnostics(missing, &stop).is_missing());
    }
}
