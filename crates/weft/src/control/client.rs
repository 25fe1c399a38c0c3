//! The side of the commands: asks a daemon, and reads what it answers.

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

/// How long an answer is waited for: a reload of a large network takes its time.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Which daemon.
#[derive(clap::Args)]
pub struct Target {
    /// The name of the host in its network file; needed where several daemons run
    #[arg(long)]
    pub host: Option<String>,
    /// The control socket [default: /run/weft/HOST.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

impl Target {
    /// True when a daemon was named.
    pub fn is_named(&self) -> bool {
        self.host.is_some() || self.control.is_some()
    }

    /// The socket of the daemon that was named, or of the only one.
    ///
    /// # Errors
    /// None was named, and there is none, or several.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        self.find()?.ok_or_else(|| {
            Failure::Input(anyhow!(
                "no daemon runs on this host: start one with `weft run`, or name its socket with --control"
            ))
        })
    }

    /// The same; `None` when none was named, and there is none.
    ///
    /// # Errors
    /// None was named, and there are several.
    pub fn find(&self) -> Result<Option<PathBuf>, Failure> {
        match (&self.control, &self.host) {
            (Some(path), _) => Ok(Some(path.clone())),
            (None, Some(host)) => Ok(Some(default_path(host))),
            (None, None) => only_one(hosts_in(default_path("").parent().unwrap_or(Path::new("/")))),
        }
    }
}

/// The hosts whose daemons have sockets in a folder.
fn hosts_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut hosts: Vec<_> =
        names.filter_map(|name| Some(name.strip_suffix(".sock")?.to_owned())).collect();
    hosts.sort();
    hosts
}

fn only_one(hosts: Vec<String>) -> Result<Option<PathBuf>, Failure> {
    match hosts.as_slice() {
        [host] => Ok(Some(default_path(host))),
        [] => Ok(None),
        hosts => Err(Failure::Input(anyhow!(
            "there are several daemons: say which with --host, one of {}",
            hosts.join(", ")
        ))),
    }
}

/// One line of what a daemon says.
#[derive(Deserialize)]
struct Line {
    ok: Option<Value>,
    row: Option<Value>,
    end: Option<Value>,
    error: Option<String>,
    #[serde(default)]
    input: bool,
}

/// What comes next in a stream.
pub enum Next<R, E = Value> {
    /// A row.
    Row(R),
    /// The end; there is nothing behind it.
    End(E),
    /// Nothing yet.
    Nothing,
    /// The daemon has ended.
    HungUp,
}

/// A stream of rows.
pub struct Stream {
    reader: BufReader<UnixStream>,
    line: Vec<u8>,
}

/// Asks the daemon at `path` for something that has one answer.
pub fn ask<T: DeserializeOwned>(path: &PathBuf, request: &Request) -> Result<T, Failure> {
    Ok(Stream::open(path, request)?.0)
}

impl Stream {
    /// Asks the daemon at `path` for a stream; returns how it begins, too.
    pub fn open<T: DeserializeOwned>(
        path: &PathBuf,
        request: &Request,
    ) -> Result<(T, Self), Failure> {
        let mut stream = UnixStream::connect(path).with_context(|| {
            format!("no daemon listens at {}: start one with `weft run`", path.display())
        })?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        match stream.write_all(&text) {
            // A daemon that has too many clients says so without listening.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                return Err(error).context("ask the daemon")?;
            }
            _ => {}
        }
        let mut stream = Self { reader: BufReader::new(stream), line: Vec::new() };
        let line = stream.line(ANSWER_LIMIT)?.context("the daemon does not answer")?;
        let line = line.context("the daemon has ended without an answer")?;
        let answer = line.ok.context("the daemon's answer is none")?;
        let answer = serde_json::from_value(answer).context("understand the daemon's answer")?;
        Ok((answer, stream))
    }

    /// What comes next, if something comes within `limit`.
    pub fn next<R: DeserializeOwned, E: DeserializeOwned>(
        &mut self,
        limit: Duration,
    ) -> Result<Next<R, E>, Failure> {
        let Some(line) = self.line(limit)? else { return Ok(Next::Nothing) };
        let Some(line) = line else { return Ok(Next::HungUp) };
        const FAULT: &str = "understand the daemon";
        match (line.row, line.end) {
            (Some(row), _) => Ok(Next::Row(serde_json::from_value(row).context(FAULT)?)),
            (None, Some(end)) => Ok(Next::End(serde_json::from_value(end).context(FAULT)?)),
            (None, None) => Err(anyhow!("the daemon says neither a row nor an end").into()),
        }
    }

    /// Every row of a stream that ends, and its end.
    pub fn all<R: DeserializeOwned, E: DeserializeOwned>(
        mut self,
        mut each: impl FnMut(R) -> Result<(), Failure>,
    ) -> Result<E, Failure> {
        loop {
            match self.next(ANSWER_LIMIT)? {
                Next::Row(row) => each(row)?,
                Next::End(end) => return Ok(end),
                Next::Nothing => return Err(anyhow!("the daemon does not answer").into()),
                Next::HungUp => return Err(anyhow!("the daemon has ended").into()),
            }
        }
    }

    /// True when there is something to read without waiting.
    pub fn has_more(&self) -> bool {
        !self.reader.buffer().is_empty()
    }

    /// The next line; `None` when none comes within `limit`, `Some(None)` when there will be none.
    fn line(&mut self, limit: Duration) -> Result<Option<Option<Line>>, Failure> {
        self.reader.get_ref().set_read_timeout(Some(limit))?;
        match self.reader.read_until(b'\n', &mut self.line) {
            Ok(_) if self.line.last() == Some(&b'\n') => {}
            Ok(_) => return Ok(Some(None)),
            // What has come of a line so far is kept.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Some(None)),
            Err(error) => return Err(error).context("read the daemon's answer")?,
        }
        let line: Line =
            serde_json::from_slice(&self.line).context("understand the daemon's answer")?;
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
    fn the_only_daemon_is_meant_when_none_is_named() {
        let said = |hosts: &[&str]| match only_one(hosts.iter().map(ToString::to_string).collect())
        {
            Ok(path) => path.map_or_else(String::new, |path| path.display().to_string()),
            Err(Failure::Input(error)) => error.to_string(),
            Err(_) => panic!("it is the input that is wrong"),
        };
        assert_eq!(said(&["h1"]), "/run/weft/h1.sock");
        assert!(said(&["h1", "h2"]).ends_with("--host, one of h1, h2"));
        assert_eq!(said(&[]), "");
    }
}
