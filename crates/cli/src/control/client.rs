//! The client side of the control socket: sends a request to a daemon and reads its replies.

use super::{Request, default_path};
use crate::Failure;
use anyhow::{Context, anyhow};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for a reply. A reload of a large network takes many seconds.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The error for a reply that cannot be parsed: the daemon may be another version of weft.
const INVALID_REPLY: &str = "cannot parse the reply of the daemon: it is not one that this version \
                             of weft knows; run the same version as the daemon";
/// The error when the daemon closes a stream that should have continued.
pub const DAEMON_EXITED: &str = "the stream has ended: the daemon exited; start it with `weft run`";

fn no_reply() -> String {
    let seconds = REPLY_TIMEOUT.as_secs();
    format!("no reply within {seconds} s: the daemon is busy or hangs; see its log")
}

/// The options that select a daemon.
#[derive(clap::Args)]
pub struct DaemonSelector {
    /// The daemon of this host of the network file; needed only where several daemons run
    #[arg(long)]
    pub host: Option<String>,
    /// Path of the control socket [default: /run/weft/HOST.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

impl DaemonSelector {
    /// True when the command line names a daemon.
    pub fn is_named(&self) -> bool {
        self.host.is_some() || self.control.is_some()
    }

    /// The socket of the daemon named on the command line, or of the only daemon.
    ///
    /// # Errors
    /// The command line names no daemon, and none or several run.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        self.find()?.ok_or_else(|| {
            Failure::Input(anyhow!(
                "no daemon runs on this host: /run/weft has no socket; start a daemon with \
                 `weft run`, or name its socket with --control"
            ))
        })
    }

    /// As [`Self::path`], but `None` when the command line names no daemon and none runs.
    ///
    /// # Errors
    /// The command line names no daemon, and several run.
    pub fn find(&self) -> Result<Option<PathBuf>, Failure> {
        match (&self.control, &self.host) {
            (Some(path), _) => Ok(Some(path.clone())),
            (None, Some(host)) => Ok(Some(default_path(host))),
            (None, None) => only_one(hosts_in(default_path("").parent().unwrap_or(Path::new("/")))),
        }
    }
}

/// The hosts whose daemons have sockets in a directory.
fn hosts_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut hosts: Vec<_> =
        names.filter_map(|name| Some(name.strip_suffix(".sock")?.to_owned())).collect();
    hosts.sort_unstable();
    hosts
}

fn only_one(hosts: Vec<String>) -> Result<Option<PathBuf>, Failure> {
    match hosts.as_slice() {
        [host] => Ok(Some(default_path(host))),
        [] => Ok(None),
        hosts => Err(Failure::Input(anyhow!(
            "cannot choose a daemon: several run on this host; name one with --host, one of {}",
            hosts.join(", ")
        ))),
    }
}

/// One line from a daemon.
#[derive(Deserialize)]
struct Line {
    ok: Option<Value>,
    row: Option<Value>,
    end: Option<Value>,
    error: Option<String>,
    #[serde(default)]
    input: bool,
}

/// The next event of a stream.
pub enum StreamEvent<R, E = Value> {
    /// A row of the stream.
    Row(R),
    /// The last object of a finite stream.
    End(E),
    /// Nothing arrived within the time limit.
    Timeout,
    /// The daemon has closed the connection.
    Closed,
}

/// An open stream of rows from a daemon.
pub struct Stream {
    reader: BufReader<UnixStream>,
    line: Vec<u8>,
}

/// Sends a request with a single reply to the daemon at `path`.
pub fn request<T: DeserializeOwned>(path: &PathBuf, request: &Request) -> Result<T, Failure> {
    Ok(Stream::open(path, request)?.0)
}

impl Stream {
    /// Sends a request to the daemon at `path`. Returns the `ok` reply and the stream after it.
    pub fn open<T: DeserializeOwned>(
        path: &PathBuf,
        request: &Request,
    ) -> Result<(T, Self), Failure> {
        let mut stream = UnixStream::connect(path).with_context(|| {
            format!("cannot reach a daemon at {}: start one with `weft run`", path.display())
        })?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        match stream.write_all(&text) {
            // A daemon with too many clients replies and closes without reading the request.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                return Err(error).context("cannot send the request to the daemon")?;
            }
            _ => {}
        }
        let mut stream = Self { reader: BufReader::new(stream), line: Vec::new() };
        let line = stream.line(REPLY_TIMEOUT)?.with_context(no_reply)?;
        let line = line.context("the daemon exited without a reply: see its log")?;
        let reply = line.ok.context(INVALID_REPLY)?;
        let reply = serde_json::from_value(reply).context(INVALID_REPLY)?;
        Ok((reply, stream))
    }

    /// Waits up to `limit` for the next event.
    pub fn next<R: DeserializeOwned, E: DeserializeOwned>(
        &mut self,
        limit: Duration,
    ) -> Result<StreamEvent<R, E>, Failure> {
        let Some(line) = self.line(limit)? else { return Ok(StreamEvent::Timeout) };
        let Some(line) = line else { return Ok(StreamEvent::Closed) };
        match (line.row, line.end) {
            (Some(row), _) => {
                Ok(StreamEvent::Row(serde_json::from_value(row).context(INVALID_REPLY)?))
            }
            (None, Some(end)) => {
                Ok(StreamEvent::End(serde_json::from_value(end).context(INVALID_REPLY)?))
            }
            (None, None) => Err(anyhow!(INVALID_REPLY).into()),
        }
    }

    /// Passes every row of a finite stream to `each`. Returns the object that ends the stream.
    pub fn all<R: DeserializeOwned, E: DeserializeOwned>(
        mut self,
        mut each: impl FnMut(R) -> Result<(), Failure>,
    ) -> Result<E, Failure> {
        loop {
            match self.next(REPLY_TIMEOUT)? {
                StreamEvent::Row(row) => each(row)?,
                StreamEvent::End(end) => return Ok(end),
                StreamEvent::Timeout => return Err(anyhow!(no_reply()).into()),
                StreamEvent::Closed => return Err(anyhow!(DAEMON_EXITED).into()),
            }
        }
    }

    /// True when the next line can be read without waiting.
    pub fn has_more(&self) -> bool {
        !self.reader.buffer().is_empty()
    }

    /// The next line. `None`: none arrived within `limit`. `Some(None)`: the connection is closed.
    fn line(&mut self, limit: Duration) -> Result<Option<Option<Line>>, Failure> {
        self.reader.get_ref().set_read_timeout(Some(limit))?;
        match self.reader.read_until(b'\n', &mut self.line) {
            Ok(_) if self.line.last() == Some(&b'\n') => {}
            Ok(_) => return Ok(Some(None)),
            // The buffer keeps an incomplete line for the next call.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Some(None)),
            Err(error) => return Err(error).context("cannot read the reply of the daemon")?,
        }
        let line: Line = serde_json::from_slice(&self.line).context(INVALID_REPLY)?;
        self.line.clear();
        match line.error {
            Some(error) if line.input => Err(Failure::Input(anyhow!(error))),
            Some(error) => Err(anyhow!(error).into()),
            None => Ok(Some(Some(line))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_daemon_is_used_when_none_is_named() {
        let result =
            |hosts: &[&str]| match only_one(hosts.iter().map(ToString::to_string).collect()) {
                Ok(path) => path.map_or_else(String::new, |path| path.display().to_string()),
                Err(Failure::Input(error)) => error.to_string(),
                Err(_) => panic!("expected an input error"),
            };
        assert_eq!(result(&["h1"]), "/run/weft/h1.sock");
        assert!(result(&["h1", "h2"]).ends_with("--host, one of h1, h2"));
        assert_eq!(result(&[]), "");
    }
}
