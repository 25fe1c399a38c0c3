//! OVN's northbound and southbound databases, ovn-northd between them, and ovn-trace: an instance in a directory of its own,
//! so that one that runs on the machine is left alone. It needs no privileges and makes no interface.
//!
//! ```no_run
//! let ovn = testkit::ovn::Ovn::start("example");
//! ovn.configure(&["ls-add sw0", "lsp-add sw0 vm1"]);
//! let dump = ovn.dump();
//! let said = ovn.tracer(0).trace("sw0", "inport == \"vm1\" && eth.type == 0x88cc");
//! ```

use crate::program::{Running, command, run, wait_for_server};
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, process};

/// Where Debian puts the schemas.
const SCHEMAS: &str = "/usr/share/ovn";
/// How long a server may take until it listens, or answers.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes in the path of a socket (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// A running instance; ended when dropped.
pub struct Ovn {
    // In the order in which they are ended.
    _northd: Running,
    _databases: [Running; 2],
    directory: Directory,
}

/// A directory that is removed when dropped.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left of it, should that fail, is a temporary file.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Ovn {
    /// Starts an instance; `name` tells it from others of this process.
    ///
    /// # Panics
    /// When a program is missing or does not start; ask for `ovn-northd` with [`require_program!`](crate::require_program)
    /// first.
    pub fn start(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("weft-ovn-{}-{name}", process::id()));
        assert!(directory.as_os_str().len() + 20 < MAX_SOCKET_PATH, "{}", directory.display());
        fs::create_dir(&directory).expect("a directory can be made");
        let directory = Directory(directory);
        let at = directory.0.as_path();
        let databases = ["nb", "sb"].map(|database| start_database(at, database));
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
        Self { _northd: Running::start("ovn-northd", northd, at), _databases: databases, directory }
    }

    /// Runs commands of ovn-nbctl, as on its command line but each a text of its own, in which `'` and `"` quote as in a
    /// shell, and waits until ovn-northd has brought the southbound database up to date.
    pub fn configure<T: AsRef<str>>(&self, commands: &[T]) {
        /// Commands in one call: its command line has a limit.
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
        let at = self.directory.0.as_path();
        let call = with_args(tool(at, "ovn-sbctl"), &[&socket(at, "sb", "--db=")]);
        run(with_args(call, &words(command).iter().map(String::as_str).collect::<Vec<_>>()), b"")
    }

    /// The southbound database, as JSON.
    pub fn dump(&self) -> String {
        let at = self.directory.0.as_path();
        let dump = ["dump", "--format=json", &socket(at, "sb", ""), "OVN_Southbound"];
        run(with_args(tool(at, "ovsdb-client"), &dump), b"")
    }

    /// Starts an ovn-trace that answers many questions; `number` tells it from others of this instance. It sees what is in the
    /// database now, and later changes.
    pub fn tracer(&self, number: usize) -> Tracer {
        let at = self.directory.0.as_path();
        let control = at.join(format!("trace{number}.ctl"));
        let pid_file = at.join(format!("trace{number}.pid"));
        // It serves its socket only as a daemon, which is ended by a command.
        let call = with_args(
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
        run(call, b"");
        wait_for_server(&control);
        let stream = UnixStream::connect(&control).expect("ovn-trace listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
        Tracer { stream }
    }
}

/// An ovn-trace that runs; ended when dropped.
pub struct Tracer {
    stream: UnixStream,
}

impl Tracer {
    /// What becomes of a packet, as `ovn-trace --summary --minimal` says it; `None` when ovn-trace has crashed instead.
    ///
    /// # Panics
    /// When ovn-trace refuses to answer, or takes too long.
    pub fn trace(&mut self, datapath: &str, microflow: &str) -> Option<String> {
        let params = ["--summary", "--minimal", datapath, microflow];
        let request = json!({ "id": 0, "method": "trace", "params": params }).to_string();
        self.stream.write_all(request.as_bytes()).expect("ovn-trace listens");
        let mut answers = serde_json::Deserializer::from_reader(&self.stream).into_iter::<Value>();
        let answer = answers.next()?.expect("an answer is JSON");
        match answer.get("result").and_then(Value::as_str) {
            Some(said) => Some(said.to_owned()),
            None => panic!("ovn-trace of {microflow}: {answer}"),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let request = json!({ "id": 0, "method": "exit", "params": [] }).to_string();
        // A daemon that does not read its socket has ended already.
        let _ = self.stream.write_all(request.as_bytes());
    }
}

fn start_database(at: &Path, name: &'static str) -> Running {
    let schema = format!("{SCHEMAS}/ovn-{name}.ovsschema");
    let file = format!("{name}.db");
    run(with_args(tool(at, "ovsdb-tool"), &["create", &file, &schema]), b"");
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

/// A program of the packages, with everything that it writes in the instance's directory.
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

/// The words of a command; `'...'` and `"..."` hold words together, the former literally.
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
