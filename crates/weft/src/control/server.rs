//! The daemon's side: listens, reads a request of each client on a thread of its own, and writes answers and streams.

use super::{MAX_CLIENTS, Request};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::json;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client may take to ask, however many bytes it does that with.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// How long a client may take nothing of what is written for it: somebody may be reading page by page.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// The same for who is sent away.
const REFUSAL_LIMIT: Duration = Duration::from_millis(50);
/// How long nobody is let in after the kernel refused to.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
const MAX_REQUEST_BYTES: u64 = 64 * 1024;
/// Lines are written together up to so many bytes.
const PORTION_BYTES: usize = 64 * 1024;

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

    /// Has `answer` answer everybody who asks, up to [`MAX_CLIENTS`] at the same time: on threads that end with the process, so
    /// that no client can hold up what the caller does.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn serve(
        &self,
        answer: impl Fn(Request, &mut Client) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let listener = self.listener.try_clone().context("share the control socket")?;
        std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || serve_all(&listener, &Arc::new(answer)))
            .context("start the control thread")?;
        Ok(())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Nothing is lost when the file is gone already.
        let _ = std::fs::remove_file(&self.path);
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

fn serve_all<F>(listener: &UnixListener, answer: &Arc<F>)
where
    F: Fn(Request, &mut Client) -> io::Result<()> + Send + Sync + 'static,
{
    // Each client holds one of these.
    let places = Arc::new(());
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors or memory, say: whoever waits would be reported again at once.
                tracing::debug!("control socket: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let mut client = Client::new(stream);
        if Arc::strong_count(&places) > MAX_CLIENTS {
            client.stall_limit = REFUSAL_LIMIT;
            let busy = format!("{MAX_CLIENTS} clients are being served already: try again later");
            // Who does not take the refusal does without.
            let _ = client.fail(&busy);
            continue;
        }
        let (place, answer) = (Arc::clone(&places), Arc::clone(answer));
        let serve = move || {
            if let Err(error) = serve_one(&mut client, &*answer) {
                tracing::debug!("control connection: {error}");
            }
            drop(place);
        };
        if let Err(error) = std::thread::Builder::new().name("client".to_owned()).spawn(serve) {
            tracing::warn!("cannot serve a client: {error}");
        }
    }
}

fn serve_one(
    client: &mut Client,
    answer: impl Fn(Request, &mut Client) -> io::Result<()>,
) -> io::Result<()> {
    let mut line = String::new();
    let asking = Asking { stream: &client.stream, end: Instant::now() + ASK_LIMIT };
    BufReader::new(asking.take(MAX_REQUEST_BYTES)).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(request) => answer(request, client)?,
        Err(error) => client.refuse(&format!("not a request: {error}"))?,
    }
    client.flush()
}

/// A connection on which a request has to be over by `end`. The socket's own limits are for a single call: whoever sends a byte
/// now and then never meets them.
struct Asking<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Read for Asking<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

/// Who has asked, and takes the answer. Lines are collected and written together; see [`Client::flush`].
pub struct Client {
    stream: UnixStream,
    waiting: Vec<u8>,
    stall_limit: Duration,
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        Self { stream, waiting: Vec::new(), stall_limit: STALL_LIMIT }
    }

    /// The answer, or the beginning of a stream.
    ///
    /// # Errors
    /// The client has hung up, or takes nothing; the same for all that follows.
    pub fn ok(&mut self, answer: &impl Serialize) -> io::Result<()> {
        self.line("ok", answer)
    }

    /// A row of a stream.
    pub fn row(&mut self, row: &impl Serialize) -> io::Result<()> {
        self.line("row", row)
    }

    /// The end of a stream.
    pub fn end(&mut self, end: &impl Serialize) -> io::Result<()> {
        self.line("end", end)
    }

    /// The request is wrong, and why.
    pub fn refuse(&mut self, why: &str) -> io::Result<()> {
        self.json(&json!({ "error": why, "input": true }))?;
        self.flush()
    }

    /// The request cannot be done, and why.
    pub fn fail(&mut self, why: &str) -> io::Result<()> {
        self.line("error", &why)?;
        self.flush()
    }

    /// Writes what was collected.
    pub fn flush(&mut self) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.stall_limit))?;
        self.stream.write_all(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    /// True when the client has hung up. What it sends beside its request means nothing.
    pub fn has_hung_up(&mut self) -> bool {
        let mut bytes = [0; 64];
        let read = self.stream.set_nonblocking(true).and_then(|()| self.stream.read(&mut bytes));
        let blocks = self.stream.set_nonblocking(false);
        let is_there = match read {
            Ok(len) => len > 0,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        !is_there || blocks.is_err()
    }

    fn line(&mut self, tag: &str, content: &impl Serialize) -> io::Result<()> {
        /// An object with one member.
        struct Tagged<'a, T>(&'a str, &'a T);
        impl<T: Serialize> Serialize for Tagged<'_, T> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map([(self.0, self.1)])
            }
        }
        self.json(&Tagged(tag, content))
    }

    fn json(&mut self, object: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.waiting, object)?;
        self.waiting.push(b'\n');
        if self.waiting.len() >= PORTION_BYTES { self.flush() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Next, Stream, ask};
    use super::*;
    use crate::Failure;
    use serde_json::Value;
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
        control.serve(|_, client| client.ok(&"an answer")).unwrap();
        let _silent = UnixStream::connect(&path).unwrap();
        let mut slow = UnixStream::connect(&path).unwrap();
        let trickle = std::thread::spawn(move || {
            let end = Instant::now() + 5 * ASK_LIMIT;
            while Instant::now() < end {
                if slow.write_all(b" ").is_err() {
                    return true;
                }
                std::thread::sleep(ASK_LIMIT / 20);
            }
            false
        });
        assert_eq!(answer(&path).as_deref(), Ok("an answer"));
        assert!(trickle.join().unwrap(), "who sends a byte now and then is shut out");
    }

    #[test]
    fn answer_names_the_fault_when_a_request_is_none() {
        let folder = Folder::new("none");
        let path = folder.0.join("weft.sock");
        let control = Control::listen(&path).unwrap();
        control.serve(|_, client| client.ok(&"an answer")).unwrap();
        for request in ["\n", "{}\n", "{\"command\":\"halt\"}\n", "{\"command\":\"show\"\n"] {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(5 * ASK_LIMIT)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            assert!(said.starts_with("{\"error\":\"not a request:"), "{request:?}: {said}");
        }
    }

    /// The answer, or the error.
    fn answer(path: &Path) -> Result<String, String> {
        ask::<String>(&path.to_owned(), &Request::Show).map_err(|failure| match failure {
            Failure::Work(error) => format!("work: {error:#}"),
            Failure::Input(error) => format!("input: {error:#}"),
            Failure::Unread => "unread".to_owned(),
            Failure::Found(code) => format!("found: {code}"),
        })
    }

    #[test]
    fn errors_say_whether_the_request_is_wrong() {
        let folder = Folder::new("errors");
        let path = folder.0.join("weft.sock");
        let control = Control::listen(&path).unwrap();
        let answers = std::sync::atomic::AtomicU32::new(0);
        control
            .serve(move |_, client| {
                match answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                    0 => client.refuse("no such port"),
                    _ => client.fail("the datapath has stopped"),
                }
            })
            .unwrap();
        assert_eq!(answer(&path), Err("input: no such port".to_owned()));
        assert_eq!(answer(&path), Err("work: the datapath has stopped".to_owned()));
    }

    #[test]
    fn stream_ends_for_the_daemon_when_the_client_hangs_up() {
        let folder = Folder::new("stream");
        let path = folder.0.join("weft.sock");
        let control = Control::listen(&path).unwrap();
        let (ended, has_ended) = std::sync::mpsc::channel();
        control
            .serve(move |_, client| {
                client.ok(&"stream")?;
                (0..3).try_for_each(|row| client.row(&row))?;
                client.flush()?;
                while !client.has_hung_up() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                ended.send(()).map_err(io::Error::other)
            })
            .unwrap();
        let open = Stream::open::<String>(&path, &Request::Show);
        let Ok((_, mut stream)) = open else { panic!("there is a stream") };
        let mut next = |limit| stream.next::<u32, Value>(Duration::from_millis(limit));
        for row in 0..3 {
            assert!(matches!(next(5000), Ok(Next::Row(got)) if got == row));
        }
        assert!(matches!(next(20), Ok(Next::Nothing)));
        assert!(has_ended.try_recv().is_err());
        drop(stream);
        has_ended.recv_timeout(5 * ASK_LIMIT).unwrap();
    }

    #[test]
    fn clients_are_sent_away_when_there_are_too_many() {
        let folder = Folder::new("many");
        let path = folder.0.join("weft.sock");
        let control = Control::listen(&path).unwrap();
        control
            .serve(|_, client| {
                client.ok(&"stream")?;
                client.flush()?;
                while !client.has_hung_up() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            })
            .unwrap();
        let open = || Stream::open::<String>(&path, &Request::Show).map(|(_, stream)| stream);
        let streams: Vec<_> =
            (0..MAX_CLIENTS).map(|_| open().unwrap_or_else(|_| panic!())).collect();
        assert_eq!(
            answer(&path),
            Err(format!("work: {MAX_CLIENTS} clients are being served already: try again later"))
        );
        drop(streams);
        let end = Instant::now() + 5 * ASK_LIMIT;
        while answer(&path).is_err() {
            assert!(Instant::now() < end, "the places are free again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
