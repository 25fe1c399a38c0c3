//! OVN: northbound and southbound databases, ovn-northd and ovn-trace, in a separate directory, so
//! that an OVN of this machine is not affected. It needs no root and creates no interface.
//!
//! ```no_run
//! let ovn = testkit::ovn::Ovn::start("example");
//! ovn.configure(&["ls-add sw0", "lsp-add sw0 vm1"]);
//! let dump = ovn.dump();
//! let said = ovn.tracer(0).trace("sw0", "inport == \"vm1\" && eth.type == 0x88cc");
//! ```

use crate::program::{Running, command, run, wait_for_server};
use serde_json::{Value, json};
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, process};

/// The directory of the schemas on Debian.
const SCHEMAS: &str = "/usr/share/ovn";
/// Timeout for a server to listen or respond.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum length of a socket path (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// A running instance; stopped when dropped.
pub struct Ovn {
    // The fields are dropped, and so stopped, in this order.
    _northd: Running,
    _northbound: Running,
    southbound: Option<Running>,
    directory: Directory,
}

/// A directory that is removed when dropped.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // Errors are ignored: then some temporary files remain.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Ovn {
    /// Starts an instance; `name` distinguishes it from others of this process.
    ///
    /// # Panics
    /// When a program is missing or does not start; check with
    /// [`require_program!`](crate::require_program) for `ovn-northd` first.
    pub fn start(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("weft-ovn-{}-{name}", process::id()));
        assert!(directory.as_os_str().len() + 20 < MAX_SOCKET_PATH, "{}", directory.display());
        fs::create_dir(&directory).expect("a directory can be made");
        let directory = Directory(directory);
        let at = directory.0.as_path();
        let [northbound, southbound] = ["nb", "sb"].map(|name| {
            create_database(at, name);
            start_database(at, name)
        });
        for (program, database) in [("ovn-nbctl", "nb"), ("ovn-sbctl", "sb")] {
            wait_for_server(&at.join(format!("{database}.sock")));
            run(with_args(tool(at, program), &[&socket(at, database, "--db="), "init"]), b"");
        }
        let northd = with_args(
            tool(at, "ovn-northd"),
            &[
                &socket(at, "nb", "--ovnnb-db="),
                &socket(at, "sb", "--ovnsb-db="),
                "--unixctl=northd.ctl",
                "-vsyslog:off",
            ],
        );
        let northd = Running::start("ovn-northd", northd, at);
        Self { _northd: northd, _northbound: northbound, southbound: Some(southbound), directory }
    }

    /// Stops the server of the southbound database. The other programs notice this and try to
    /// connect again.
    pub fn stop_southbound(&mut self) {
        self.southbound = None;
    }

    /// Starts the server of the southbound database again, with the rows that it had before.
    pub fn start_southbound(&mut self) {
        let at = self.directory.0.as_path();
        self.southbound = Some(start_database(at, "sb"));
        wait_for_server(&at.join("sb.sock"));
    }

    /// Runs ovn-nbctl commands. Each is one string, in which `'` and `"` quote as in a shell. Waits
    /// until ovn-northd has updated the southbound database.
    pub fn configure<T: AsRef<str>>(&self, commands: &[T]) {
        /// Commands per call, because the length of a command line is limited.
        const BATCH: usize = 8000;
        for (at, batch) in commands.chunks(BATCH).enumerate() {
            let mut call = with_args(
                tool(&self.directory.0, "ovn-nbctl"),
                &[&socket(&self.directory.0, "nb", "--db="), "--timeout=30"],
            );
            if (at + 1) * BATCH >= commands.len() {
                call.arg("--wait=sb");
            }
            for command in batch {
                call.arg("--").args(words(command.as_ref()));
            }
            run(call, b"");
        }
    }

    /// Runs ovn-sbctl with a command.
    pub fn sbctl(&self, command: &str) -> String {
        self.ctl("ovn-sbctl", "sb", command)
    }

    /// Runs ovn-nbctl with a command. Unlike [`configure`](Self::configure), it does not wait
    /// unless the command says so.
    pub fn nbctl(&self, command: &str) -> String {
        self.ctl("ovn-nbctl", "nb", command)
    }

    fn ctl(&self, program: &str, database: &str, command: &str) -> String {
        let at = self.directory.0.as_path();
        let options = [&socket(at, database, "--db="), "--timeout=30"];
        let call = with_args(tool(at, program), &options);
        run(with_args(call, &words(command).iter().map(String::as_str).collect::<Vec<_>>()), b"")
    }

    /// The address of the southbound database, in the form of a chassis' setting `ovn-remote`.
    pub fn southbound(&self) -> String {
        socket(&self.directory.0, "sb", "")
    }

    /// The content of the southbound database as JSON.
    pub fn dump(&self) -> String {
        let at = self.directory.0.as_path();
        let dump = ["dump", "--format=json", &socket(at, "sb", ""), "OVN_Southbound"];
        run(with_args(tool(at, "ovsdb-client"), &dump), b"")
    }

    /// Starts an ovn-trace for many queries; `number` distinguishes it from others of this
    /// instance. It sees later changes of the database too.
    pub fn tracer(&self, number: usize) -> Tracer {
        self.tracer_with(number, &[])
    }

    /// Like [`Ovn::tracer`], with additional arguments, such as `--ct=new`.
    pub fn tracer_with(&self, number: usize, arguments: &[&str]) -> Tracer {
        let at = self.directory.0.as_path();
        let control = at.join(format!("trace{number}.ctl"));
        let pid_file = at.join(format!("trace{number}.pid"));
        // ovn-trace serves its socket only as a daemon. The method `drop` stops it with a command.
        let mut call = with_args(
            tool(at, "ovn-trace"),
            &[
                &socket(at, "sb", "--db="),
                "--detach",
                "--no-chdir",
                "-vconsole:off",
                "-vsyslog:off",
                &format!("--unixctl={}", control.display()),
                &format!("--pidfile={}", pid_file.display()),
            ],
        );
        call.args(arguments);
        run(call, b"");
        wait_for_server(&control);
        let stream = UnixStream::connect(&control).expect("ovn-trace listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
        Tracer { stream }
    }
}

/// A running ovn-trace; stopped when dropped.
pub struct Tracer {
    stream: UnixStream,
}

impl Tracer {
    /// The output of `ovn-trace --summary --minimal` for a packet; `None` when ovn-trace crashed.
    ///
    /// # Panics
    /// When ovn-trace returns an error or times out.
    pub fn trace(&mut self, datapath: &str, microflow: &str) -> Option<String> {
        let params = ["--summary", "--minimal", datapath, microflow];
        let request = json!({ "id": 0, "method": "trace", "params": params }).to_string();
        self.stream.write_all(request.as_bytes()).expect("ovn-trace listens");
        // There is one response to each request, so the buffer contains no bytes of a later
        // response.
        let answers = serde_json::Deserializer::from_reader(BufReader::new(&self.stream));
        let answer = answers.into_iter::<Value>().next()?.expect("an answer is JSON");
        match answer.get("result").and_then(Value::as_str) {
            Some(output) => Some(output.to_owned()),
            None => panic!("ovn-trace of {microflow}: {answer}"),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let request = json!({ "id": 0, "method": "exit", "params": [] }).to_string();
        // Errors are ignored: a daemon that does not respond has ended already.
        let _ = self.stream.write_all(request.as_bytes());
    }
}

fn create_database(at: &Path, name: &str) {
    let schema = format!("{SCHEMAS}/ovn-{name}.ovsschema");
    run(with_args(tool(at, "ovsdb-tool"), &["create", &format!("{name}.db"), &schema]), b"");
}

fn start_database(at: &Path, name: &'static str) -> Running {
    let file = format!("{name}.db");
    let call = with_args(
        tool(at, "ovsdb-server"),
        &[
            &file,
            &format!("--remote=punix:{name}.sock"),
            &format!("--unixctl={name}.ctl"),
            "-vsyslog:off",
        ],
    );
    Running::start(name, call, at)
}

fn socket(at: &Path, name: &str, option: &str) -> String {
    format!("{option}unix:{}/{name}.sock", at.display())
}

/// The program `name`, which finds all its files in the instance's directory.
fn tool(at: &Path, name: &str) -> Command {
    let mut command = command(name);
    for variable in
        ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVN_RUNDIR", "OVN_LOGDIR", "OVN_DBDIR"]
    {
        command.env(variable, at);
    }
    command.current_dir(at);
    command
}

fn with_args(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}

/// Splits a command into words; `'...'` and `"..."` quote. There are no escape sequences.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in command.chars() {
        match quote {
            Some(open) if character == open => quote = None,
            Some(_) => word.get_or_insert_default().push(character),
            None if matches!(character, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            None if character == ' ' => words.extend(word.take()),
            None => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_as_in_a_shell() {
        let command = r#"acl-add s1 to-lport 5 'ip4.src == 10.0.0.1 && inport == "vm1"' drop"#;
        let expected =
            ["acl-add", "s1", "to-lport", "5", r#"ip4.src == 10.0.0.1 && inport == "vm1""#, "drop"];
        assert_eq!(words(command), expected);
        assert_eq!(words("a ''"), ["a", ""]);
    }
}
