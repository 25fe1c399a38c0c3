//! The control socket of a daemon: a unix stream socket, one JSON object a line each way.
//!
//! A request is `{"command":"show"}`; the answer `{"ok": ...}` or `{"error":"..."}`.

use anyhow::{Context, Result, bail};
use datapath::stats::Snapshot;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

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

const TIMEOUT: Duration = Duration::from_secs(3);
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
    pub fn listen(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("create {}", folder.display()))?;
        }
        if path.exists() {
            if UnixStream::connect(path).is_ok() {
                bail!("a daemon is already running: it listens at {}", path.display());
            }
            std::fs::remove_file(path)
                .with_context(|| format!("remove the stale {}", path.display()))?;
        }
        let listener =
            UnixListener::bind(path).with_context(|| format!("listen at {}", path.display()))?;
        listener.set_nonblocking(true)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, mode)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Answers everybody who waits, with what `answer` says.
    pub fn serve(&self, answer: impl Fn(Request) -> Answer) {
        while let Ok((stream, _)) = self.listener.accept() {
            if let Err(error) = serve_one(&stream, &answer) {
                tracing::debug!("control connection: {error:#}");
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Nothing is lost when the file is gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve_one(mut stream: &UnixStream, answer: impl Fn(Request) -> Answer) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REQUEST_BYTES)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => answer(request),
        Err(error) => Answer::Error(format!("not a request: {error}")),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    Ok(())
}

/// Asks the daemon at `path`.
pub fn ask(path: &Path, request: &Request) -> Result<Snapshot> {
    let mut stream = UnixStream::connect(path).with_context(|| {
        format!("no daemon listens at {}: start one with `weft run`", path.display())
    })?;
    stream.set_read_timeout(Some(TIMEOUT))?;
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
