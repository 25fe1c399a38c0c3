//! Reads the network file of a daemon within a time limit.
//!
//! A read from a hung file system never returns, and nothing can cancel it. It runs in a separate
//! thread, so that the daemon still forwards, replies to clients and can stop.

use crate::Failure;
use crate::bridges::{FlowFile, FlowFiles};
use anyhow::{Context, Result, anyhow, bail};
use network::Network;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How long a read may take.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// The maximum number of reads that run at the same time, including reads past the time limit.
const MAX_READS: usize = 4;

/// Bounds the time and the number of reads.
pub struct FileReads {
    limit: Duration,
    /// Each running read holds a clone, so the reference count is the number of reads.
    slots: Arc<()>,
}

impl FileReads {
    pub fn new() -> Self {
        Self { limit: READ_LIMIT, slots: Arc::new(()) }
    }

    /// Reads and checks a network file.
    ///
    /// # Errors
    /// The file is invalid, cannot be read, or its file system has not answered in time.
    pub fn load(&self, file: &Path) -> Result<Network, Failure> {
        let name = file.display().to_string();
        Network::parse_bytes(&self.read(file)?, &name).map_err(Failure::input)
    }

    /// Reads a network file or a flow file without checking it.
    ///
    /// # Errors
    /// The file cannot be read, or its file system has not answered in time.
    pub fn read(&self, file: &Path) -> Result<Vec<u8>, Failure> {
        let path = file.to_owned();
        let bytes = self
            .run(move || network::read_file(&path))
            .with_context(|| format!("cannot read {}", file.display()))
            .map_err(Failure::Input)?;
        bytes.map_err(Failure::input)
    }

    /// Reads the flow files of the bridges on `host`. Their paths are relative to the directory of
    /// the network file, `file`.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn load_flows(
        &self,
        network: &Network,
        file: &Path,
        host: &str,
    ) -> Result<FlowFiles, Failure> {
        let index = network.host(host).map(|host| host.index);
        let here = network.bridges().iter().filter(|bridge| Some(bridge.host) == index);
        let mut files = FlowFiles::new();
        for bridge in here {
            let Some(flows) = &bridge.flows else { continue };
            let path = file.parent().unwrap_or(Path::new("")).join(flows);
            let name = path.display().to_string();
            let text = String::from_utf8(self.read(&path)?)
                .with_context(|| format!("cannot read {name}: it is not UTF-8 text"))
                .map_err(Failure::Input)?;
            files.insert(bridge.name.clone(), FlowFile { name, text });
        }
        Ok(files)
    }

    fn run<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let slot = Arc::clone(&self.slots);
        if Arc::strong_count(&self.slots) > MAX_READS + 1 {
            bail!("{MAX_READS} earlier reads still wait for their file systems; check the mounts");
        }
        let (sender, receiver) = sync_channel(1);
        let body = move || {
            // The main thread may not block signals yet. This thread must not receive them.
            let _ = netdev::signal::block_in_this_thread();
            let result = read();
            drop(slot);
            // Fails if the receiver gave up at the time limit.
            let _ = sender.send(result);
        };
        std::thread::Builder::new()
            .name("read".to_owned())
            .spawn(body)
            .context("cannot start a thread")?;
        receiver.recv_timeout(self.limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                let seconds = self.limit.as_secs();
                anyhow!("its file system has not answered within {seconds} s; check the mount")
            }
            RecvTimeoutError::Disconnected => anyhow!("the thread that read it has panicked"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    #[test]
    fn reads_end_with_an_error_when_they_hang_and_never_pile_up() {
        let reads = FileReads { limit: Duration::from_millis(20), ..FileReads::new() };
        let block_read = || {
            let (gate, wait) = channel::<()>();
            let error = reads.run(move || wait.recv()).unwrap_err().to_string();
            (gate, error)
        };
        let (gates, errors): (Vec<Sender<()>>, Vec<_>) =
            (0..MAX_READS + 1).map(|_| block_read()).unzip();
        let (last, others) = errors.split_last().unwrap();
        for error in others {
            assert!(error.contains("has not answered within"), "{error}");
        }
        assert!(last.contains("4 earlier reads still wait"), "{last}");
        // The file system responds again.
        drop(gates);
        while Arc::strong_count(&reads.slots) > 1 {
            std::thread::yield_now();
        }
        let reads = FileReads { limit: READ_LIMIT, ..reads };
        assert_eq!(reads.run(|| 7).unwrap(), 7);
    }
}
