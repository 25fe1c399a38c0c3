//! Delegation of address management to another plugin, such as host-local (section 4 of the
//! specification).

use crate::config::{Attachment, NetworkConfig};
use crate::outcome::{self, Error};
use std::env;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of the plugin.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);
/// How long to wait for the end of its output after it has exited: a child process may keep the
/// pipe open.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// The longest output that is read.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;

/// The plugin that the configuration names.
pub struct Plugin<'c> {
    name: &'c str,
    path: PathBuf,
    config: &'c [u8],
}

impl<'c> Plugin<'c> {
    /// The plugin; `None` if the daemon assigns the addresses.
    ///
    /// # Errors
    /// `CNI_PATH` has no such program.
    pub fn find(config: &'c NetworkConfig) -> Result<Option<Self>, Error> {
        let Some(name) = config.ipam.plugin.as_deref() else { return Ok(None) };
        if name.is_empty() || name.contains('/') {
            let why = format!("ipam.type is {name:?}; write the name of a plugin");
            return Err(Error::new(outcome::CONFIG, "invalid network configuration", why));
        }
        let folders = env::var_os("CNI_PATH").unwrap_or_default();
        let found = env::split_paths(&folders).map(|folder| folder.join(name));
        let Some(path) = found.into_iter().find(|path| path.is_file()) else {
            let why = format!("CNI_PATH is {}", folders.to_string_lossy());
            return Err(Error::new(outcome::CONFIG, format!("cannot find plugin {name}"), why));
        };
        Ok(Some(Self { name, path, config: &config.text }))
    }

    /// Executes the plugin with the environment of this process. Returns its output.
    ///
    /// # Errors
    /// It cannot be started, takes too long, or fails.
    pub fn execute(&self) -> Result<Vec<u8>, Error> {
        self.start(Command::new(&self.path))
    }

    /// As [`Self::execute`], with another CNI command.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    pub fn execute_as(&self, command: &str) -> Result<Vec<u8>, Error> {
        let mut program = Command::new(&self.path);
        program.env("CNI_COMMAND", command);
        self.start(program)
    }

    /// Releases the addresses of a container whose namespace is gone.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    pub fn release(&self, attachment: &Attachment) -> Result<(), Error> {
        let mut program = Command::new(&self.path);
        program.env("CNI_COMMAND", "DEL").env_remove("CNI_NETNS");
        program.env("CNI_CONTAINERID", &attachment.container);
        program.env("CNI_IFNAME", &attachment.ifname);
        self.start(program).map(drop)
    }

    fn start(&self, mut program: Command) -> Result<Vec<u8>, Error> {
        let failed = |error: std::io::Error| {
            Error::new(outcome::IO, format!("cannot run plugin {}", self.name), error)
        };
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        // The threads are not joined, but end with this process: a plugin may not read its input,
        // or not close its output.
        let config = self.config.to_vec();
        thread::spawn(move || input.map(|mut input| input.write_all(&config)));
        let (sender, printed) = mpsc::channel();
        thread::spawn(move || {
            let mut text = Vec::new();
            let output = output.map(|output| output.take(MAX_OUTPUT_BYTES));
            let read = output.map_or(Ok(0), |mut output| output.read_to_end(&mut text));
            sender.send(read.map(|_| text))
        });
        let is_success = self.wait(&mut child)?;
        let text = match printed.recv_timeout(OUTPUT_PATIENCE) {
            Ok(text) => text.map_err(failed)?,
            Err(_) => Vec::new(),
        };
        if is_success { Ok(text) } else { Err(Error::of_plugin(self.name, &text)) }
    }

    fn wait(&self, child: &mut Child) -> Result<bool, Error> {
        let end = Instant::now() + PATIENCE;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status.success()),
                Ok(None) if Instant::now() < end => thread::sleep(PAUSE),
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    let why = format!("it took over {} s", PATIENCE.as_secs());
                    let what = format!("plugin {} does not end", self.name);
                    return Err(Error::new(outcome::LATER, what, why));
                }
                Err(error) => return Err(Error::new(outcome::IO, "cannot wait", error)),
            }
        }
    }
}
