//! Reports the state of the daemon to a service manager such as systemd, by the protocol of
//! sd_notify(3): text datagrams to the Unix socket that the environment names.
//!
//! The daemon must notify the manager's watchdog within its time limit. It does so only after its
//! main thread, the threads of the switch and each forwarding thread have responded. A panic in a
//! thread ends the process.

use crate::daemon::Daemon;
use anyhow::{Context, Result, bail};
use std::borrow::Cow;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// The connection to the service manager, if one has started this process.
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// The time without a notification after which the manager kills the daemon.
    watchdog: Option<Duration>,
}

/// A state of the daemon.
#[derive(Clone, Copy)]
pub enum State<'a> {
    /// The daemon forwards packets and replies to clients.
    Ready,
    /// The daemon reads its network file again.
    Reloading,
    /// The reload has failed for this reason. The daemon continues with the old network.
    ReloadFailed(&'a str),
    /// The daemon is stopping.
    Stopping,
    /// All threads have responded: notifies the watchdog.
    Alive,
}

impl State<'_> {
    fn text(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Ready => "READY=1\nSTATUS=",
            Self::Reloading => "RELOADING=1",
            // Each line of a message is a separate variable, so line breaks are replaced.
            Self::ReloadFailed(why) => {
                return format!("READY=1\nSTATUS={}", why.replace('\n', "; ")).into();
            }
            Self::Stopping => "STOPPING=1",
            Self::Alive => "WATCHDOG=1",
        })
    }
}

impl ServiceManager {
    /// Connects to the manager that `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` name.
    ///
    /// # Errors
    /// The socket does not exist, or the time is not a number.
    pub fn connect() -> Result<Self> {
        let variable = |name| std::env::var(name).ok();
        let socket = variable("NOTIFY_SOCKET").map(|name| open(&name)).transpose()?;
        let is_other = |pid: String| pid != std::process::id().to_string();
        let watchdog = match variable("WATCHDOG_USEC") {
            Some(_) if variable("WATCHDOG_PID").is_some_and(is_other) => None,
            Some(text) => Some(text.parse().with_context(|| format!("WATCHDOG_USEC={text}"))?),
            None => None,
        };
        Ok(Self { socket, watchdog: watchdog.map(Duration::from_micros) })
    }

    /// Sends a state to the manager. If the manager does not read, the state is lost and the daemon
    /// continues.
    pub fn tell(&self, state: State<'_>) {
        let Some(socket) = &self.socket else { return };
        let text = state.text();
        if let Err(error) = socket.send(text.as_bytes()) {
            messages::log!(
                SERVICE_MANAGER_UNREACHABLE,
                "cannot send {text:?} to the service manager: {error}"
            );
        }
    }
}

/// A socket connected to `name`: a path, or an abstract name after `@`.
fn open(name: &str) -> Result<UnixDatagram> {
    let failed = || format!("cannot reach the service manager at NOTIFY_SOCKET={name}");
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).with_context(failed)?,
        None if name.starts_with('/') => SocketAddr::from_pathname(name).with_context(failed)?,
        None => bail!("NOTIFY_SOCKET={name} is neither a path nor a name behind @"),
    };
    let socket = UnixDatagram::unbound().with_context(failed)?;
    socket.connect_addr(&address).with_context(failed)?;
    // Non-blocking, so that a manager that hangs does not block the daemon.
    socket.set_nonblocking(true).with_context(failed)?;
    Ok(socket)
}

/// Notifies the watchdog thread each time the main thread wakes up.
pub struct MainThreadTurns(Option<SyncSender<()>>);

impl MainThreadTurns {
    pub fn note(&self) {
        if let Some(sender) = &self.0 {
            // If the queue is full, the watchdog thread has not read the previous turn yet.
            let _ = sender.try_send(());
        }
    }
}

/// Starts the thread that notifies the watchdog, if the manager uses one.
pub fn start_watchdog(
    manager: &Arc<ServiceManager>,
    daemon: &Arc<Daemon>,
) -> Result<MainThreadTurns> {
    let Some(limit) = manager.watchdog else { return Ok(MainThreadTurns(None)) };
    let (sender, turns) = sync_channel(1);
    let (manager, daemon) = (Arc::clone(manager), Arc::clone(daemon));
    let body = move || {
        watch(&turns, limit, || match daemon.check_threads(limit) {
            Ok(()) => manager.tell(State::Alive),
            Err(error) => messages::log!(
                WATCHDOG_NOT_SERVED,
                "not telling the service manager to wait: {error:#}"
            ),
        });
    };
    std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(body)
        .context("cannot start the thread for the service manager's watchdog")?;
    Ok(MainThreadTurns(Some(sender)))
}

/// Calls `check` after turns of the main thread, at most once in a quarter of `limit`.
fn watch(turns: &Receiver<()>, limit: Duration, mut check: impl FnMut()) {
    let mut due = Instant::now();
    for () in turns {
        if Instant::now() >= due {
            check();
            due = Instant::now() + limit / 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_checks_only_when_the_main_thread_takes_turns() {
        let (sender, turns) = sync_channel(1);
        let (checked, checks) = sync_channel(10);
        let check = move || checked.send(()).unwrap();
        let watching = std::thread::spawn(move || watch(&turns, Duration::ZERO, check));
        let main = MainThreadTurns(Some(sender));
        for _ in 0..3 {
            main.note();
            checks.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        assert!(checks.recv_timeout(Duration::from_millis(50)).is_err(), "nobody took a turn");
        drop(main);
        watching.join().unwrap();
    }

    #[test]
    fn socket_is_reached_by_path_and_by_abstract_name() {
        let name = format!("weft-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (address, name) in [
            (SocketAddr::from_pathname(&path).unwrap(), path.display().to_string()),
            (abstract_name, format!("@{name}")),
        ] {
            let receiver = UnixDatagram::bind_addr(&address).unwrap();
            let manager = ServiceManager { socket: Some(open(&name).unwrap()), watchdog: None };
            manager.tell(State::Ready);
            let mut bytes = [0; 64];
            let length = receiver.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], b"READY=1\nSTATUS=");
        }
        std::fs::remove_file(&path).unwrap();
        for missing in [path.display().to_string(), "@no such".to_owned(), "vsock:2".to_owned()] {
            let error = open(&missing).unwrap_err().to_string();
            assert!(error.contains(&format!("NOTIFY_SOCKET={missing}")), "{error}");
        }
    }
}
