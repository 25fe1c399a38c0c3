//! The control sockets of ovs-vswitchd and ovn-controller, to which `ovs-appctl` and `ovn-appctl`
//! send commands.
//!
//! A tool reads `NAME.pid` in the run directory, connects to `NAME.PID.ctl` in the same directory,
//! and sends one JSON-RPC request. The reply carries a text as its result or as its error.

use super::server::listen_at;
use anyhow::{Context, Result};
use netdev::pid_file::PidFile;
use ovsdb::Remote;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client may leave a part of the reply unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest request, in bytes.
const MAX_REQUEST_BYTES: u64 = 64 * 1024;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The program that weft replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    Vswitchd,
    Controller,
}

impl Program {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vswitchd => "ovs-vswitchd",
            Self::Controller => "ovn-controller",
        }
    }
}

/// A request of a tool.
#[derive(Deserialize)]
pub struct Call {
    id: Value,
    /// The command, such as `dpctl/dump-flows`.
    pub method: String,
    /// Its arguments.
    #[serde(default)]
    pub params: Vec<String>,
}

/// The text that the tool prints as its result, or as its error.
pub type Reply = Result<String, String>;

/// The two listening sockets with their pid files. Their files are removed on drop.
#[derive(Default)]
pub struct ToolSockets(Vec<ToolSocket>);

struct ToolSocket {
    program: Program,
    listener: UnixListener,
    path: PathBuf,
    _pid_file: PidFile,
}

impl ToolSockets {
    /// Listens in the directory of the local database's socket, where the tools look. If a socket
    /// cannot be opened, logs a warning and continues: forwarding does not depend on it.
    pub fn listen(database: &Remote) -> Self {
        let folders = run_folders(database, |name| std::env::var_os(name).map(PathBuf::from));
        let programs = [Program::Vswitchd, Program::Controller].into_iter().zip(folders);
        let opened = programs.filter_map(|(program, folder)| {
            let opened = ToolSocket::listen(program, &folder);
            opened.inspect_err(|error| messages::log!(TOOL_SOCKET_MISSING, "{error:#}")).ok()
        });
        Self(opened.collect())
    }

    /// The files of the sockets.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|socket| socket.path.as_path())
    }

    /// Answers calls with `answer`. If `answer` also returns a function, calls it after the reply
    /// is sent. One client of each program is served at a time.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn serve<F, T>(&self, answer: F) -> Result<()>
    where
        F: Fn(Program, &Call) -> (Reply, Option<T>) + Send + Sync + 'static,
        T: FnOnce(),
    {
        let answer = Arc::new(answer);
        for socket in &self.0 {
            let program = socket.program;
            let listener = socket.listener.try_clone().context("cannot duplicate a socket")?;
            let answer = Arc::clone(&answer);
            std::thread::Builder::new()
                .name("tools".to_owned())
                .spawn(move || accept_clients(&listener, |call| answer(program, call)))
                .with_context(|| format!("cannot start the thread for {}", program.name()))?;
        }
        Ok(())
    }
}

impl ToolSocket {
    fn listen(program: Program, folder: &Path) -> Result<Self> {
        let name = program.name();
        let path = folder.join(format!("{name}.{}.ctl", std::process::id()));
        let listener = listen_at(&path, "OVS_RUNDIR")?;
        let pid_path = folder.join(format!("{name}.pid"));
        let pid_file = PidFile::create(&pid_path).map_err(|error| {
            // The value whose `drop` removes the socket does not exist yet.
            let _ = std::fs::remove_file(&path);
            let kind = error.kind();
            let (name, path) = (program.name(), pid_path.display());
            anyhow::Error::from(error).context(match kind {
                ErrorKind::WouldBlock => {
                    format!("tools reach another {name}, which has locked {path}: stop it")
                }
                _ => format!("tools do not find weft as {name}: cannot write {path}"),
            })
        })?;
        Ok(Self { program, listener, path, _pid_file: pid_file })
    }
}

impl Drop for ToolSocket {
    fn drop(&mut self) {
        // Fails only if the file is already gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The run directory of Open vSwitch.
pub fn run_folder(database: &Remote) -> PathBuf {
    let [folder, _] = run_folders(database, |name| std::env::var_os(name).map(PathBuf::from));
    folder
}

/// The run directories of Open vSwitch and of OVN: those that `OVS_RUNDIR` and `OVN_RUNDIR` name.
/// Without them, the directory of the local database's socket, and for OVN its sibling `ovn` if
/// that directory is named `openvswitch`.
fn run_folders(database: &Remote, variable: impl Fn(&str) -> Option<PathBuf>) -> [PathBuf; 2] {
    let beside = match database {
        Remote::Unix(path) => path.parent().map(Path::to_owned),
        _ => None,
    };
    let beside = beside.unwrap_or_else(|| PathBuf::from("/run/openvswitch"));
    let switch = variable("OVS_RUNDIR").unwrap_or(beside);
    let ovn = variable("OVN_RUNDIR").unwrap_or_else(|| {
        let is_usual = switch.file_name().is_some_and(|name| name == "openvswitch");
        if is_usual { switch.with_file_name("ovn") } else { switch.clone() }
    });
    [switch, ovn]
}

fn accept_clients<T: FnOnce()>(
    listener: &UnixListener,
    answer: impl Fn(&Call) -> (Reply, Option<T>),
) {
    loop {
        match listener.accept() {
            Ok((client, _)) => {
                if let Err(error) = serve_client(&client, &answer) {
                    messages::log!(TOOL_SOCKET_ERROR, "control socket for tools: {error}");
                }
            }
            Err(error) => {
                // When the process is out of descriptors, accept fails again at once.
                messages::log!(TOOL_CLIENT_ERROR, "control socket for tools: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Serves the one request of a client.
fn serve_client<T: FnOnce()>(
    client: &UnixStream,
    answer: impl Fn(&Call) -> (Reply, Option<T>),
) -> io::Result<()> {
    client.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    let reader = BufReader::new(UntilDeadline { client, deadline }.take(MAX_REQUEST_BYTES));
    // Tools send no line break after the request: it ends with the closing brace.
    let mut calls = serde_json::Deserializer::from_reader(reader).into_iter::<Call>();
    let Some(call) = calls.next() else { return Ok(()) };
    let call = call.map_err(io::Error::from)?;
    let (reply, then) = answer(&call);
    let (result, error) = match reply {
        Ok(text) => (Some(text), None),
        Err(text) => (None, Some(text + "\n")),
    };
    let reply = json!({ "id": call.id, "result": result, "error": error }).to_string();
    let sent = (&mut &*client).write_all(reply.as_bytes());
    if let Some(then) = then {
        then();
    }
    sent
}

/// A reader that fails after `deadline`, even if the client keeps sending single bytes.
struct UntilDeadline<'a> {
    client: &'a UnixStream,
    deadline: Instant,
}

impl Read for UntilDeadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.client.set_read_timeout(Some(left))?;
        (&mut &*self.client).read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn run_folders_follow_the_environment_and_the_local_database() {
        let none = |_: &str| None;
        let folders = |remote: &str, variable: &dyn Fn(&str) -> Option<PathBuf>| {
            let remote: Remote = remote.parse().expect("a remote");
            run_folders(&remote, variable).map(|path| path.display().to_string())
        };
        let usual = ["/run/openvswitch", "/run/ovn"];
        assert_eq!(folders("unix:/run/openvswitch/db.sock", &none), usual);
        assert_eq!(folders("tcp:127.0.0.1:6640", &none), usual);
        assert_eq!(folders("unix:/tmp/a/db.sock", &none), ["/tmp/a", "/tmp/a"]);
        let ovn = |name: &str| (name == "OVN_RUNDIR").then(|| PathBuf::from("/x"));
        assert_eq!(folders("unix:/tmp/a/db.sock", &ovn), ["/tmp/a", "/x"]);
        let ovs = |name: &str| (name == "OVS_RUNDIR").then(|| PathBuf::from("/y"));
        assert_eq!(folders("unix:/tmp/a/db.sock", &ovs), ["/y", "/y"]);
    }

    fn exchange(sent: &[u8]) -> (String, bool) {
        let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
        client.write_all(sent).expect("the request fits the buffer");
        let is_done = Rc::new(Cell::new(false));
        let answer = |call: &Call| {
            let reply = match call.method.as_str() {
                "version" => Ok(format!("1 {}", call.params.join("+"))),
                other => Err(format!("no {other}")),
            };
            let is_done = Rc::clone(&is_done);
            (reply, Some(move || is_done.set(true)))
        };
        // Fails for invalid requests and at the deadline. The tests check the reply instead.
        let _ = serve_client(&server, answer);
        drop(server);
        let mut reply = String::new();
        // Fails if the server left bytes unread: the kernel then resets the connection.
        let _ = client.read_to_string(&mut reply);
        (reply, is_done.get())
    }

    #[test]
    fn call_is_answered_when_no_line_break_follows() {
        let (reply, is_done) = exchange(br#"{"id":7,"method":"version","params":["a","b"]}"#);
        let reply: Value = serde_json::from_str(&reply).expect("a reply is JSON");
        assert_eq!(reply, json!({ "id": 7, "result": "1 a+b", "error": null }));
        assert!(is_done);
        let (reply, _) = exchange(br#"{"id":null,"method":"odd"} trailing"#);
        let reply: Value = serde_json::from_str(&reply).expect("a reply is JSON");
        assert_eq!(reply, json!({ "id": null, "result": null, "error": "no odd\n" }));
    }

    #[test]
    fn client_is_left_without_reply_when_its_bytes_are_no_request() {
        let long = [b"{\"id\":\"".as_slice(), &[b'a'; 70_000]].concat();
        for sent in [
            b"".as_slice(),
            b"\xff\xfe",
            b"[1]",
            b"{\"id\":1}",
            br#"{"id":1,"method":"version","params":[{"a":1}]}"#,
            b"{\"id\":1,\"method\":",
            &long,
        ] {
            assert_eq!(exchange(sent), (String::new(), false), "{}", sent.escape_ascii());
        }
    }
}
