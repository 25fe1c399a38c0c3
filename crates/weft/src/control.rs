//! The control socket of a daemon: a unix stream socket, one JSON object a line each way.
//!
//! A request is `{"command":"show"}`; the answer `{"ok": ...}` or `{"error":"..."}`.

use anyhow::{Context, Result, bail};
use datapath::stats::Snapshot;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What can be asked of a daemon.
#[derive(Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Request {
    Show,
}

/// What it answers.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Ok(Box<Snapshot>),
    Error(String),
}

/// How long a daemon is waited for.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long a client may take to ask, and again to take its answer, however many bytes it does that with.
const CLIENT_LIMIT: Duration = Duration::from_secs(1);
/// How long nobody is let in after the kernel refused to.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
const MAX_REQUEST_BYTES: u64 = 64 * 1024;

/// Where the daemon of `host` listens unless told otherwise.
pub fn default_path(host: &str) -> PathBuf {
    Path::new("/run/weft").join(format!("{host}.sock"))
}

/// The listening socket; its file is removed on drop.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Listens at `path`. A socket that nobody listens at any more, of a daemon that was killed, is replaced.
    ///
    /// # Errors
    /// A daemon listens there, or there is something else than a socket, which is left alone.
    pub fn listen(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("create {}", folder.display()))?;
        }
        remove_stale(path)?;
        let listener =
            UnixListener::bind(path).with_context(|| format!("listen at {}", path.display()))?;
        let control = Self { listener, path: path.to_owned() };
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))
            .with_context(|| format!("close {} to other users", path.display()))?;
        Ok(control)
    }

    /// Answers everybody who asks, one after the other, with what `answer` says: on a thread of its own, which ends with the
    /// process, so that no client can hold up what the caller does.
    ///
    /// # Errors
    /// There can be no such thread.
    pub fn serve(&self, answer: impl Fn(Request) -> Answer + Send + 'static) -> Result<()> {
        let listener = self.listener.try_clone().context("share the control socket")?;
        std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || serve_all(&listener, answer))
            .context("start the control thread")?;
        Ok(())
    }
}

/// Removes the socket of a daemon that was killed: one at which nobody listens.
fn remove_stale(path: &Path) -> Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("look at {}", path.display())),
    };
    if !found.file_type().is_socket() {
        bail!("cannot listen at {}: it is there already and is no socket", path.display());
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("a daemon is already running: it listens at {}", path.display()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .with_context(|| format!("remove the stale {}", path.display())),
        // Whoever it belonged to has just ended.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => {
            Err(error).with_context(|| format!("find out who listens at {}", path.display()))
        }
    }
}

fn serve_all(listener: &UnixListener, answer: impl Fn(Request) -> Answer) {
    loop {
        let served = match listener.accept() {
            Ok((stream, _)) => serve_one(&stream, &answer),
            Err(error) => {
                // Out of descriptors or memory, say: whoever waits would be reported again at once.
                std::thread::sleep(ACCEPT_PAUSE);
                Err(error.into())
            }
        };
        if let Err(error) = served {
            tracing::debug!("control connection: {error:#}");
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Nothing is lost when the file is gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve_one(stream: &UnixStream, answer: impl Fn(Request) -> Answer) -> Result<()> {
    let mut line = String::new();
    let asking = Timed { stream, end: Instant::now() + CLIENT_LIMIT };
    BufReader::new(asking.take(MAX_REQUEST_BYTES)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => answer(request),
        Err(error) => Answer::Error(format!("not a request: {error}")),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    Timed { stream, end: Instant::now() + CLIENT_LIMIT }.write_all(&text)?;
    Ok(())
}

/// A connection on which everything has to be over by `end`. The socket's own limits are for a single call: whoever sends a byte
/// now and then never meets them.
struct Timed<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Asks the daemon at `path`.
pub fn ask(path: &Path, request: &Request) -> Result<Snapshot> {
    let mut stream = UnixStream::connect(path).with_context(|| {
        format!("no daemon listens at {}: start one with `weft run`", path.display())
    })?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).context("read the daemon's answer")?;
    match serde_json::from_str(&line).context("understand the daemon's answer")? {
        Answer::Ok(snapshot) => Ok(*snapshot),
        Answer::Error(error) => bail!(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder for the sockets of one test, removed on drop.
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

    fn refusal(path: &Path) -> String {
        match Control::listen(path) {
            Ok(_) => panic!("{} is listened at", path.display()),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn listen_leaves_alone_what_is_no_socket() {
        let folder = Folder::new("alone");
        let file = folder.0.join("precious");
        fs::write(&file, "text").unwrap();
        assert!(refusal(&file).contains("no socket"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        let dir = folder.0.join("dir");
        fs::create_dir(&dir).unwrap();
        assert!(refusal(&dir).contains("no socket"));
        // A link that leads nowhere does not exist for those who follow it.
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(folder.0.join("nowhere"), &link).unwrap();
        assert!(refusal(&link).contains("no socket"));
        assert!(link.is_symlink() && dir.is_dir());
    }

    #[test]
    fn listen_replaces_a_socket_when_nobody_listens_there() {
        let folder = Folder::new("stale");
        let path = folder.0.join("new/weft.sock");
        let control = Control::listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(refusal(&path).contains("already running"));
        drop(control);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "as a killed daemon leaves it");
        drop(Control::listen(&path).unwrap());
    }

    #[test]
    fn clients_are_answered_when_others_are_slow() {
        let folder = Folder::new("slow");
        let path = folder.0.join("weft.sock");
        let control = Control::listen(&path).unwrap();
        control.serve(|Request::Show| Answer::Error("an answer".to_owned())).unwrap();
        let _silent = UnixStream::connect(&path).unwrap();
        let mut slow = UnixStream::connect(&path).unwrap();
        let trickle = std::thread::spawn(move || {
            let end = Instant::now() + 5 * CLIENT_LIMIT;
            while Instant::now() < end {
                if slow.write_all(b" ").is_err() {
                    return true;
                }
                std::thread::sleep(CLIENT_LIMIT / 20);
            }
            false
        });
        let answer = ask(&path, &Request::Show).err().map(|error| error.to_string());
        assert_eq!(answer.as_deref(), Some("an answer"));
        assert!(trickle.join().unwrap(), "who sends a byte now and then is shut out");
    }

    #[test]
    fn answer_names_the_fault_when_a_request_is_none() {
        let folder = Folder::new("none");
        let path = folder.0.join("weft.sock");
        let control = Control::listen(&path).unwrap();
        control.serve(|Request::Show| Answer::Error("an answer".to_owned())).unwrap();
        for request in ["\n", "{}\n", "{\"command\":\"stop\"}\n", "{\"command\":\"show\"\n"] {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            assert!(said.starts_with("{\"error\":\"not a request:"), "{request:?}: {said}");
        }
    }
}
