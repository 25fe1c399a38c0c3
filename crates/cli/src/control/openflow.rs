//! The management sockets of bridges, `BRIDGE.mgmt` in the run directory, at which ovs-ofctl reads
//! flows.

use super::server::remove_stale;
use anyhow::Context;
use openflow::{BridgeKind, HEADER_LEN, hello, message_len, reply};
use pipeline::Program;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a client may be silent, or leave a part of a reply unread.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// The longest name of a bridge, as for network devices (IFNAMSIZ without the terminating zero).
const MAX_NAME: usize = 15;

/// A function that returns the current program.
pub type ProgramSource = Arc<dyn Fn() -> Program + Send + Sync>;

/// The sockets of all bridges. Dropping them ends their threads and removes the files.
pub struct ManagementSockets {
    folder: PathBuf,
    program: ProgramSource,
    sockets: BTreeMap<String, ManagementSocket>,
    /// Bridges whose socket could not be opened. The warning is logged once.
    failed: BTreeSet<String>,
}

impl ManagementSockets {
    /// Creates the set without sockets. [`Self::follow`] opens them in `folder`.
    pub fn new(folder: &Path, program: ProgramSource) -> Self {
        Self {
            folder: folder.to_owned(),
            program,
            sockets: BTreeMap::new(),
            failed: BTreeSet::new(),
        }
    }

    /// Opens the sockets of these bridges and closes all others. If a socket cannot be opened, logs
    /// a warning and continues: forwarding does not depend on it.
    pub fn follow(&mut self, bridges: &BTreeMap<String, BridgeKind>) {
        self.sockets.retain(|name, socket| bridges.get(name) == Some(&socket.bridge));
        for (name, &bridge) in bridges {
            let is_name = name.len() <= MAX_NAME && !name.contains('/');
            if !is_name || self.sockets.contains_key(name) {
                continue;
            }
            let path = self.folder.join(format!("{name}.mgmt"));
            match ManagementSocket::open(path, bridge, Arc::clone(&self.program)) {
                Ok(socket) => {
                    self.failed.remove(name);
                    self.sockets.insert(name.clone(), socket);
                }
                Err(error) if self.failed.insert(name.clone()) => {
                    messages::log!(
                        MANAGEMENT_SOCKET_MISSING,
                        "ovs-ofctl cannot read the flows of {name}: {error:#}"
                    );
                }
                Err(_) => {}
            }
        }
    }
}

struct ManagementSocket {
    bridge: BridgeKind,
    path: PathBuf,
    must_stop: Arc<AtomicBool>,
}

impl ManagementSocket {
    fn open(path: PathBuf, bridge: BridgeKind, program: ProgramSource) -> anyhow::Result<Self> {
        remove_stale(&path, "OVS_RUNDIR")?;
        // The sandbox of the daemon forbids fchmod(2). The umask denies access to other users.
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        let must_stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&must_stop);
        std::thread::Builder::new()
            .name("openflow".to_owned())
            .spawn(move || accept_clients(&listener, &stopped, bridge, &program))?;
        Ok(Self { bridge, path, must_stop })
    }
}

impl Drop for ManagementSocket {
    fn drop(&mut self) {
        self.must_stop.store(true, Ordering::Release);
        // Wakes the thread, which then ends. It is not joined: a slow client must not delay the
        // daemon.
        let _ = UnixStream::connect(&self.path);
        // Fails only if the file is already gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves one client at a time.
fn accept_clients(
    listener: &UnixListener,
    must_stop: &AtomicBool,
    bridge: BridgeKind,
    program: &ProgramSource,
) {
    while !must_stop.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((client, _)) => {
                if let Err(error) = serve_client(client, must_stop, bridge, program) {
                    messages::log!(MANAGEMENT_SOCKET_ERROR, "management socket: {error}");
                }
            }
            Err(error) => {
                // When the process is out of descriptors, accept fails again at once.
                messages::log!(MANAGEMENT_SOCKET_ERROR, "management socket: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn serve_client(
    mut client: UnixStream,
    must_stop: &AtomicBool,
    bridge: BridgeKind,
    program: &ProgramSource,
) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    client.write_all(&hello())?;
    while !must_stop.load(Ordering::Acquire) {
        let mut header = [0; HEADER_LEN];
        match client.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let len = message_len(&header).ok_or(io::ErrorKind::InvalidData)?;
        let mut request = vec![0; len];
        let (start, rest) = request.split_at_mut(HEADER_LEN);
        start.copy_from_slice(&header);
        client.read_exact(rest)?;
        let program = || program();
        reply(&request, bridge, program, |message| client.write_all(message))?;
    }
    Ok(())
}
