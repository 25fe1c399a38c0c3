//! The client of the daemon's control socket. `docs/control.md` describes the requests.

use crate::config::NetworkConfig;
use crate::outcome::{self, Error};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The directory of control sockets.
const FOLDER: &str = "/run/weft";
/// How long the daemon may take to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to retry while the daemon has too many clients or restarts.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// The longest reply that is read.
const MAX_REPLY_BYTES: u64 = 256 << 20;
/// The start of the daemon's error when it has too many clients.
const BUSY: &str = "too many clients";

/// The pools of this host, and the attached interfaces.
#[derive(Debug, Deserialize)]
pub struct Pools {
    pub pools: Vec<Pool>,
    pub attached: Vec<Attached>,
}

#[derive(Debug, Deserialize)]
pub struct Pool {
    pub name: String,
    pub mtu: u16,
    pub free: usize,
}

/// An interface that is attached to a port.
#[derive(Debug, Deserialize)]
pub struct Attached {
    pub port: String,
    pub device: String,
    pub owner: String,
    pub mac: String,
    /// With prefix length.
    pub addresses: Vec<String>,
    pub gateways: Vec<IpAddr>,
    pub state: Option<String>,
}

/// The daemon of this host.
pub struct Daemon {
    control: PathBuf,
    patience: Duration,
}

impl Daemon {
    /// The daemon that the configuration names, or the only daemon of this host.
    ///
    /// # Errors
    /// No daemon runs, or several do and none is named.
    pub fn of(config: &NetworkConfig) -> Result<Self, Error> {
        if let Some(control) = &config.control {
            return Ok(Self { control: control.clone(), patience: PATIENCE });
        }
        let entries = fs::read_dir(FOLDER).into_iter().flatten().flatten();
        // A stopped daemon leaves only its directory of attached devices, `SOCKET.ports`.
        let socket = |path: PathBuf| match path.extension() {
            Some(end) if end == "ports" => Some(path.with_extension("")),
            _ => Some(path),
        };
        let sockets = entries.filter_map(|entry| socket(entry.path()));
        let mut sockets: BTreeSet<PathBuf> =
            sockets.filter(|path| path.extension().is_some_and(|it| it == "sock")).collect();
        match (sockets.pop_first(), sockets.is_empty()) {
            (Some(control), true) => Ok(Self { control, patience: PATIENCE }),
            (None, _) => {
                let why = format!("{FOLDER} has no control socket; start weft run");
                Err(Error::new(outcome::UNAVAILABLE, "no daemon runs on this host", why))
            }
            (Some(_), false) => {
                let why = "name its socket by `control` in the configuration";
                Err(Error::new(outcome::CONFIG, "several daemons run on this host", why))
            }
        }
    }

    /// The same daemon, without retries.
    pub fn at_once(self) -> Self {
        Self { patience: Duration::ZERO, ..self }
    }

    /// The pools and the attached interfaces.
    ///
    /// # Errors
    /// As for [`Self::request`].
    pub fn pools(&self) -> Result<Pools, Error> {
        self.request(&json!({ "command": "pools" }))
    }

    /// Attaches an interface.
    ///
    /// # Errors
    /// As for [`Self::request`].
    pub fn add_port(
        &self,
        pool: &str,
        device: &str,
        owner: &str,
        addresses: &[IpAddr],
    ) -> Result<Attached, Error> {
        self.request(&json!({
            "command": "add_port", "at": pool, "device": device, "owner": owner,
            "addresses": addresses,
        }))
    }

    /// Detaches all interfaces of an owner. If no daemon runs, the next one will not attach them.
    ///
    /// # Errors
    /// As for [`Self::request`].
    pub fn delete_ports_of(&self, owner: &str) -> Result<(), Error> {
        if UnixStream::connect(&self.control).is_err_and(|error| is_absent(error.kind())) {
            self.forget(owner);
            // A daemon that has started meanwhile may have read the files before they were removed.
            if UnixStream::connect(&self.control).is_err_and(|error| is_absent(error.kind())) {
                return Ok(());
            }
        }
        self.request::<Value>(&json!({ "command": "delete_port", "owner": owner })).map(drop)
    }

    /// Removes the files in which a stopped daemon stored the interfaces of an owner.
    fn forget(&self, owner: &str) {
        #[derive(Deserialize)]
        struct StoredPort {
            owner: String,
        }
        let mut folder = self.control.clone().into_os_string();
        folder.push(".ports");
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let text = fs::read(entry.path()).unwrap_or_default();
            let stored = serde_json::from_slice::<StoredPort>(&text);
            if stored.is_ok_and(|it| it.owner == owner) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Sends a request, and retries while the daemon is busy or restarts.
    ///
    /// # Errors
    /// The daemon does not reply, or refuses.
    fn request<T: DeserializeOwned>(&self, request: &Value) -> Result<T, Error> {
        let end = Instant::now() + self.patience;
        loop {
            let error = match ask(&self.control, request) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if !error.is_temporary || Instant::now() >= end {
                return Err(error.error);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn is_absent(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

struct Refusal {
    error: Error,
    /// The error is temporary: a retry may succeed.
    is_temporary: bool,
}

/// Sends one request.
fn ask<T: DeserializeOwned>(control: &Path, request: &Value) -> Result<T, Refusal> {
    let failed = |is_temporary: bool, code: u32, details: String| Refusal {
        error: Error::new(
            code,
            format!("no reply from the daemon at {}", control.display()),
            details,
        ),
        is_temporary,
    };
    let mut stream = UnixStream::connect(control).map_err(|error| {
        let why = format!("{error}; is weft run running? `control` names another socket");
        failed(is_absent(error.kind()), outcome::UNAVAILABLE, why)
    })?;
    let broken = |error: std::io::Error| failed(false, outcome::LATER, error.to_string());
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(broken)?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT)).map_err(broken)?;
    let mut line = request.to_string();
    line.push('\n');
    match stream.write_all(line.as_bytes()) {
        // A daemon with too many clients replies without reading the request.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(broken(error)),
        _ => {}
    }
    let mut reply = Vec::new();
    BufReader::new(stream.take(MAX_REPLY_BYTES)).read_until(b'\n', &mut reply).map_err(broken)?;
    let ended = || "the daemon has ended".to_owned();
    if reply.is_empty() {
        return Err(failed(true, outcome::LATER, ended()));
    }
    let mut reply: Value = serde_json::from_slice(&reply)
        .map_err(|error| failed(false, outcome::LATER, error.to_string()))?;
    if let Some(message) = reply.get("error").and_then(Value::as_str) {
        let is_temporary = message.starts_with(BUSY);
        let code = if is_temporary { outcome::LATER } else { outcome::REFUSED };
        return Err(Refusal {
            error: Error::new(code, "the daemon refuses", message),
            is_temporary,
        });
    }
    let reply = reply.get_mut("ok").map(Value::take).unwrap_or_default();
    serde_json::from_value(reply).map_err(|error| {
        let why = format!("{error}; run the same version of weft-cni and weft");
        failed(false, outcome::LATER, why)
    })
}
