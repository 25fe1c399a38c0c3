//! The daemon side of the control socket: accepts clients, reads one request from each on a
//! separate thread, and writes replies and streams.

use super::{MAX_CLIENTS, MAX_VIEWERS, Request};
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde_json::json;
use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client may take to send its whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client may leave replies unread. A person may be reading them in a pager.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// The write timeout for a client that is rejected because too many are connected.
const REJECT_WRITE_TIMEOUT: Duration = Duration::from_millis(50);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
const MAX_REQUEST_BYTES: u64 = 64 * 1024;
/// The longest request of a client that may change the switch: it can contain a flow file.
const MAX_CHANGE_BYTES: u64 = 256 << 20;
/// The minimum rate at which a long request must arrive.
const LEAST_BYTES_PER_SECOND: u64 = 1 << 20;
/// The mode of the socket's directory, if the daemon creates it.
const FOLDER_MODE: u32 = 0o755;
/// Output lines are buffered up to this size before they are written.
const WRITE_BUFFER_BYTES: usize = 64 * 1024;

/// The listening socket. Its file is removed on drop.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Listens at `path`. Replaces the stale socket of a killed daemon.
    ///
    /// # Errors
    /// A daemon listens there, or the file is not a socket; the file is then left unchanged.
    pub fn listen(path: &Path) -> Result<Self> {
        Ok(Self { listener: listen_at(path, "--control")?, path: path.to_owned() })
    }

    /// Lets the members of a group connect. They may send only requests that change nothing.
    ///
    /// # Errors
    /// The group does not exist, or this process may not give it files.
    pub fn admit_viewers(&self, group: &str) -> Result<()> {
        netdev::unix::group(group)
            .and_then(|number| netdev::unix::open_to_group(&self.path, number))
            .with_context(|| format!("cannot open {} to the group {group}", self.path.display()))
    }

    /// Serves up to [`MAX_CLIENTS`] clients at a time with `handle`. Each has a detached thread
    /// that ends with the process, so no client can block the caller.
    ///
    /// # Errors
    /// The listening thread cannot be started.
    pub fn serve(
        &self,
        handle: impl Fn(Request, &mut Connection) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let listener = self.listener.try_clone().context("cannot duplicate the control socket")?;
        std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept_clients(&listener, &Arc::new(handle)))
            .context("cannot start the control thread")?;
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Fails only if the file is already gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Listens at `path`, which `option` of `weft run` names. Replaces the stale socket of a killed
/// daemon. Only the owner of the socket may connect.
///
/// # Errors
/// A daemon listens there, or the file is not a socket; the file is then left unchanged.
pub fn listen_at(path: &Path, option: &str) -> Result<UnixListener> {
    if let Some(folder) = path.parent() {
        // The mode is explicit, so that other users cannot replace the socket even if the umask is
        // 0.
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODE);
        builder.create(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    remove_stale(path, option)?;
    netdev::unix::listen_private(path)
        .with_context(|| format!("cannot listen at {}", path.display()))
}

/// Removes the socket of a killed daemon, on which no process listens.
pub(super) fn remove_stale(path: &Path, option: &str) -> Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error)
                .with_context(|| format!("cannot read the type of {}", path.display()));
        }
    };
    if !found.file_type().is_socket() {
        bail!(
            "cannot listen at {}: the file exists and is not a socket; name another with {option}",
            path.display()
        );
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!(
            "cannot listen at {}: a daemon is already running there; stop it with `weft stop`",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .with_context(|| format!("cannot remove the stale socket {}", path.display())),
        // The daemon exited between the two calls.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| {
            format!("cannot find out whether a daemon listens at {}", path.display())
        }),
    }
}

fn accept_clients<F>(listener: &UnixListener, handle: &Arc<F>)
where
    F: Fn(Request, &mut Connection) -> io::Result<()> + Send + Sync + 'static,
{
    // Each client thread holds a clone: the reference count is the number of clients.
    let slots = Arc::new(());
    // The same count for the clients with view permission only.
    let viewer_slots = Arc::new(());
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                // When the process is out of descriptors, accept fails again at once.
                messages::log!(CONTROL_SOCKET_ERROR, "control socket: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let may_change = netdev::unix::is_peer_trusted(&stream).unwrap_or(false);
        let mut client = Connection::new(stream);
        let is_full = Arc::strong_count(&slots) > MAX_CLIENTS;
        if is_full || (!may_change && Arc::strong_count(&viewer_slots) > MAX_VIEWERS) {
            client.write_timeout = REJECT_WRITE_TIMEOUT;
            let served = if is_full { MAX_CLIENTS } else { MAX_VIEWERS };
            let busy =
                format!("too many clients: the daemon serves {served} at a time; try again later");
            // A client that does not read the reply sees a closed connection.
            let _ = client.fail(&busy);
            continue;
        }
        let taken = (Arc::clone(&slots), (!may_change).then(|| Arc::clone(&viewer_slots)));
        let handle = Arc::clone(handle);
        let serve = move || {
            if let Err(error) = serve_client(&mut client, may_change, &*handle) {
                messages::log!(CONTROL_CLIENT_ERROR, "control connection: {error}");
            }
            drop(taken);
        };
        if let Err(error) = std::thread::Builder::new().name("client".to_owned()).spawn(serve) {
            messages::log!(
                CONTROL_THREAD_FAILED,
                "cannot start a thread for a control client: {error}"
            );
        }
    }
}

fn serve_client(
    client: &mut Connection,
    may_change: bool,
    handle: impl Fn(Request, &mut Connection) -> io::Result<()>,
) -> io::Result<()> {
    let mut line = Vec::new();
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    let reader = RequestReader { stream: &client.stream, deadline };
    let limit = if may_change { MAX_CHANGE_BYTES } else { MAX_REQUEST_BYTES };
    BufReader::new(reader.take(limit)).read_until(b'\n', &mut line)?;
    match parse_request(&line, limit) {
        Ok(request) if may_change || request.is_view() => handle(request, client)?,
        Ok(_) => client.reject(
            "this request needs root or the user that runs the daemon: your group may only view; \
             run the command as root, for example with sudo",
        )?,
        Err(error) => client.reject(&format!("invalid request: {error}; see docs/control.md"))?,
    }
    client.flush()
}

/// Parses the line of a request, of which at most `limit` bytes were read.
///
/// # Errors
/// The line is too long, not UTF-8, or no request.
pub fn parse_request(line: &[u8], limit: u64) -> Result<Request> {
    if line.len() as u64 == limit && line.last() != Some(&b'\n') {
        bail!("it is longer than {} KiB", limit >> 10);
    }
    let text = str::from_utf8(line).map_err(|error| {
        let at = error.valid_up_to();
        let byte = line.get(at).copied().unwrap_or_default();
        anyhow!("byte {byte:#04x} in column {} is not UTF-8", at + 1)
    })?;
    Ok(serde_json::from_str(text)?)
}

/// Reads a request until `deadline`, which the bytes of a long request extend. The receive timeout
/// of the socket is not enough: it restarts with every byte that a slow client sends.
struct RequestReader<'a> {
    stream: &'a UnixStream,
    deadline: Instant,
}

impl Read for RequestReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let read = self.stream.read(buffer)?;
        self.deadline += Duration::from_secs_f64(read as f64 / LEAST_BYTES_PER_SECOND as f64);
        Ok(read)
    }
}

/// The connection to one client. Lines are buffered until [`Connection::flush`] or until the buffer
/// is full.
pub struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
    write_timeout: Duration,
}

impl Connection {
    fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), write_timeout: WRITE_TIMEOUT }
    }

    /// Sends the reply, or the header of a stream.
    ///
    /// # Errors
    /// The client has closed the connection or does not read, as for the methods below.
    pub fn ok(&mut self, reply: &impl Serialize) -> io::Result<()> {
        self.line("ok", reply)
    }

    /// Sends a row of a stream.
    pub fn row(&mut self, row: &impl Serialize) -> io::Result<()> {
        self.line("row", row)
    }

    /// Sends the end of a finite stream.
    pub fn end(&mut self, end: &impl Serialize) -> io::Result<()> {
        self.line("end", end)
    }

    /// Reports that the request is wrong.
    pub fn reject(&mut self, reason: &str) -> io::Result<()> {
        self.json(&json!({ "error": reason, "input": true }))?;
        self.flush()
    }

    /// Reports that a valid request failed.
    pub fn fail(&mut self, reason: &str) -> io::Result<()> {
        self.line("error", &reason)?;
        self.flush()
    }

    /// Writes the buffered lines.
    pub fn flush(&mut self) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.write_timeout))?;
        self.stream.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// True when the client has closed the connection. Ignores further input of the client.
    pub fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 64];
        let read = self.stream.set_nonblocking(true).and_then(|()| self.stream.read(&mut bytes));
        let blocks = self.stream.set_nonblocking(false);
        let is_open = match read {
            Ok(len) => len > 0,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        !is_open || blocks.is_err()
    }

    fn line(&mut self, tag: &str, content: &impl Serialize) -> io::Result<()> {
        /// An object with one member.
        struct TaggedCounters<'a, T>(&'a str, &'a T);
        impl<T: Serialize> Serialize for TaggedCounters<'_, T> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map([(self.0, self.1)])
            }
        }
        self.json(&TaggedCounters(tag, content))
    }

    fn json(&mut self, object: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.buffer, object)?;
        self.buffer.push(b'\n');
        if self.buffer.len() >= WRITE_BUFFER_BYTES { self.flush() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Stream, StreamEvent, request};
    use super::*;
    use crate::Failure;
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::stat::{Mode, umask};
    use serde_json::Value;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A directory for the sockets of one test, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let name = format!("weft-control-{}-{test}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn listen_error(path: &Path) -> String {
        match ControlSocket::listen(path) {
            Ok(_) => panic!("listening at {} should fail", path.display()),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn listen_keeps_the_file_when_it_is_not_a_socket() {
        let folder = Folder::new("alone");
        let file = folder.0.join("precious");
        fs::write(&file, "text").unwrap();
        assert!(listen_error(&file).contains("not a socket"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        let dir = folder.0.join("dir");
        fs::create_dir(&dir).unwrap();
        assert!(listen_error(&dir).contains("not a socket"));
        // Opening a dangling symbolic link reports "not found", but the link itself exists.
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(folder.0.join("nowhere"), &link).unwrap();
        assert!(listen_error(&link).contains("not a socket"));
        assert!(link.is_symlink() && dir.is_dir());
    }

    #[test]
    fn listen_replaces_a_socket_when_its_daemon_is_gone() {
        let folder = Folder::new("stale");
        let path = folder.0.join("new/weft.sock");
        let control = ControlSocket::listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(listen_error(&path).contains("already running"));
        drop(control);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dropped listener leaves its file, as a killed daemon does");
        drop(ControlSocket::listen(&path).unwrap());
    }

    #[test]
    fn only_the_owner_may_open_or_replace_the_socket_when_the_umask_is_0() {
        let folder = Folder::new("umask");
        let path = folder.0.join("new/weft.sock");
        let listen = || {
            // Gives this thread an umask of its own.
            unshare(CloneFlags::CLONE_FS).unwrap();
            umask(Mode::empty());
            ControlSocket::listen(&path).unwrap()
        };
        let _control = std::thread::scope(|scope| scope.spawn(listen).join().unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(path.parent().unwrap()), mode(&path)], [0o755, 0o600]);
    }

    #[test]
    fn clients_are_served_when_another_is_slow() {
        let folder = Folder::new("slow");
        let path = folder.0.join("weft.sock");
        let control = ControlSocket::listen(&path).unwrap();
        control.serve(|_, client| client.ok(&"a reply")).unwrap();
        let _silent = UnixStream::connect(&path).unwrap();
        let mut slow = UnixStream::connect(&path).unwrap();
        let trickle = std::thread::spawn(move || {
            let end = Instant::now() + 5 * REQUEST_TIMEOUT;
            while Instant::now() < end {
                if slow.write_all(b" ").is_err() {
                    return true;
                }
                std::thread::sleep(REQUEST_TIMEOUT / 20);
            }
            false
        });
        assert_eq!(show(&path).as_deref(), Ok("a reply"));
        assert!(trickle.join().unwrap(), "the daemon disconnects the slow client");
    }

    #[test]
    fn error_names_the_fault_when_a_request_is_invalid() {
        let folder = Folder::new("invalid");
        let path = folder.0.join("weft.sock");
        let control = ControlSocket::listen(&path).unwrap();
        control.serve(|_, client| client.ok(&"a reply")).unwrap();
        let cases: [(&[u8], &str); 5] = [
            (b"\n", "EOF"),
            (b"{}\n", "missing field `command`"),
            (b"{\"command\":\"halt\"}\n", "unknown variant `halt`"),
            (b"{\"command\":\"show\"\n", "EOF"),
            (b"{\"command\":\"sh\xffw\"}\n", "byte 0xff in column 15 is not UTF-8;"),
        ];
        for (request, fault) in cases {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(5 * REQUEST_TIMEOUT)).unwrap();
            stream.write_all(request).unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            assert!(reply.starts_with("{\"error\":\"invalid request:"), "{fault}: {reply}");
            assert!(reply.contains(fault), "{fault}: {reply}");
        }
    }

    #[test]
    fn request_is_refused_when_it_is_longer_than_the_limit() {
        let long = [b' '; MAX_REQUEST_BYTES as usize];
        let error = parse_request(&long, MAX_REQUEST_BYTES).unwrap_err().to_string();
        assert_eq!(error, "it is longer than 64 KiB");
        assert!(parse_request(&long, MAX_CHANGE_BYTES).unwrap_err().to_string().contains("EOF"));
    }

    /// The reply to a `show` request, or the error with its kind.
    fn show(path: &Path) -> Result<String, String> {
        request::<String>(&path.to_owned(), &Request::Show).map_err(|failure| match failure {
            Failure::Runtime(error) => format!("runtime: {error:#}"),
            Failure::Input(error) => format!("input: {error:#}"),
            Failure::OutputClosed => "output closed".to_owned(),
            Failure::Findings(code) => format!("findings: {code}"),
        })
    }

    #[test]
    fn reply_tells_invalid_requests_from_failed_ones() {
        let folder = Folder::new("errors");
        let path = folder.0.join("weft.sock");
        let control = ControlSocket::listen(&path).unwrap();
        let count = std::sync::atomic::AtomicU32::new(0);
        control
            .serve(move |_, client| {
                match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                    0 => client.reject("no such port"),
                    _ => client.fail("the datapath has stopped"),
                }
            })
            .unwrap();
        assert_eq!(show(&path), Err("input: no such port".to_owned()));
        assert_eq!(show(&path), Err("runtime: the datapath has stopped".to_owned()));
    }

    #[test]
    fn is_closed_reports_true_when_the_client_disconnects() {
        let folder = Folder::new("stream");
        let path = folder.0.join("weft.sock");
        let control = ControlSocket::listen(&path).unwrap();
        let (closed, has_closed) = std::sync::mpsc::channel();
        control
            .serve(move |_, client| {
                client.ok(&"stream")?;
                (0..3).try_for_each(|row| client.row(&row))?;
                client.flush()?;
                while !client.is_closed() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                closed.send(()).map_err(io::Error::other)
            })
            .unwrap();
        let open = Stream::open::<String>(&path, &Request::Show);
        let Ok((_, mut stream)) = open else { panic!("the stream should open") };
        let mut next = |limit| stream.next::<u32, Value>(Duration::from_millis(limit));
        for row in 0..3 {
            assert!(matches!(next(5000), Ok(StreamEvent::Row(got)) if got == row));
        }
        assert!(matches!(next(20), Ok(StreamEvent::Timeout)));
        assert!(has_closed.try_recv().is_err());
        drop(stream);
        has_closed.recv_timeout(5 * REQUEST_TIMEOUT).unwrap();
    }

    #[test]
    fn clients_are_rejected_when_there_are_too_many() {
        let folder = Folder::new("many");
        let path = folder.0.join("weft.sock");
        let control = ControlSocket::listen(&path).unwrap();
        control
            .serve(|_, client| {
                client.ok(&"stream")?;
                client.flush()?;
                while !client.is_closed() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            })
            .unwrap();
        let open = || Stream::open::<String>(&path, &Request::Show).map(|(_, stream)| stream);
        let streams: Vec<_> =
            (0..MAX_CLIENTS).map(|_| open().unwrap_or_else(|_| panic!())).collect();
        assert_eq!(
            show(&path),
            Err(format!(
                "runtime: too many clients: the daemon serves {MAX_CLIENTS} at a time; \
                 try again later"
            ))
        );
        drop(streams);
        let end = Instant::now() + 5 * REQUEST_TIMEOUT;
        while show(&path).is_err() {
            assert!(Instant::now() < end, "the slots are free again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
