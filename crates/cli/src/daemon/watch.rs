//! Streams dropped packets and the frames of a port to clients.
//!
//! The datapath copies packets into a bounded queue. A slow client misses copies, and each row
//! reports how many. It delays neither forwarding nor other clients.

use super::Daemon;
use super::deployment::Deployment;
use crate::clock::{Utc, since_epoch};
use crate::control::Connection;
use crate::control::replies::{CaptureStart, DropRow, FlowRef, FrameRow};
use datapath::megaflow::MegaflowId;
use datapath::watch::{CaptureDirection, CapturedFrame, DroppedPacket, WatchReceiver};
use flow::DropReason;
use packet::PacketBuf;
use serde_json::json;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

/// How often a stream checks whether its client has closed the connection.
pub(super) const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of rows per write.
const BATCH: usize = 256;
/// How long the deciding flow of a megaflow is cached: one megaflow drops many packets.
const FLOW_CACHE_AGE: Duration = Duration::from_secs(1);
/// Maximum number of cached deciding flows.
const FLOW_CACHE_SIZE: usize = 1024;

impl Daemon {
    /// Streams dropped packets to a client, each with the logical flow that decided its drop. The
    /// filters select one port, one reason, or both.
    pub(super) fn drops(
        &self,
        port: Option<&str>,
        reason: Option<&str>,
        client: &mut Connection,
    ) -> io::Result<()> {
        let filter = self.deployment().drop_filter(port, reason);
        let (port, reason) = match filter {
            Ok(filter) => filter,
            Err(error) => return client.reject(&error),
        };
        let watching = match self.datapath.watch_drops() {
            Ok(watching) => watching,
            Err(error) => return client.fail(&error.to_string()),
        };
        client.ok(&json!({}))?;
        let mut flows = DecidingFlows::new(self);
        let mut missed = 0;
        stream(&watching, client, |client, dropped: Vec<DroppedPacket>| {
            let deployment = self.deployment();
            for packet in dropped {
                missed += packet.missed;
                let is_wanted = port.is_none_or(|port| port == packet.port)
                    && reason.is_none_or(|reason| reason == packet.reason);
                if is_wanted {
                    let flow = packet.megaflow.and_then(|megaflow| flows.last(megaflow));
                    client.row(&drop_row(
                        &deployment,
                        packet,
                        flow,
                        std::mem::take(&mut missed),
                    ))?;
                }
            }
            Ok(())
        })
    }

    /// Streams the frames that a guest sends and receives.
    pub(super) fn capture(
        &self,
        port: &str,
        snap_bytes: usize,
        client: &mut Connection,
    ) -> io::Result<()> {
        let number = match self.deployment().port(port) {
            Ok(port) => port.port,
            Err(error) => return client.reject(&error),
        };
        let watching = match self.datapath.watch_frames(number, snap_bytes) {
            Ok(watching) => watching,
            Err(error) => return client.fail(&error.to_string()),
        };
        let what = format!("the guest of port {port} on host {}", self.host);
        client.ok(&CaptureStart { what })?;
        stream(&watching, client, |client, frames: Vec<CapturedFrame>| {
            frames.iter().try_for_each(|frame| {
                let direction = match frame.direction {
                    CaptureDirection::FromGuest => "from_guest",
                    CaptureDirection::ToGuest => "to_guest",
                };
                client.row(&FrameRow {
                    time_ns: epoch_ns(frame.time),
                    direction: direction.to_owned(),
                    len: frame.len,
                    bytes: to_hex(&frame.bytes),
                    missed: frame.missed,
                })
            })
        })
    }
}

/// Passes watched items to `write`, in batches, until the client closes the connection or the
/// datapath stops.
fn stream<T>(
    watching: &WatchReceiver<T>,
    client: &mut Connection,
    mut write: impl FnMut(&mut Connection, Vec<T>) -> io::Result<()>,
) -> io::Result<()> {
    client.flush()?;
    let mut next_check = Instant::now() + CLOSE_CHECK_INTERVAL;
    loop {
        match watching.recv_timeout(CLOSE_CHECK_INTERVAL) {
            Ok(first) => {
                let batch = std::iter::once(first).chain(watching.try_iter()).take(BATCH);
                write(client, batch.collect())?;
                client.flush()?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        // A filter may reject every row, so a failed write alone does not reveal a closed client.
        if Instant::now() >= next_check {
            if client.is_closed() {
                return Ok(());
            }
            next_check = Instant::now() + CLOSE_CHECK_INTERVAL;
        }
    }
}

impl Deployment {
    /// The port and the drop reason with these names.
    fn drop_filter(
        &self,
        port: Option<&str>,
        reason: Option<&str>,
    ) -> Result<(Option<flow::PortNo>, Option<DropReason>), String> {
        let port = port.map(|name| self.any_port(name)).transpose()?;
        let find = |name: &str| {
            let found = DropReason::ALL.iter().find(|reason| reason.name() == name).copied();
            found.ok_or_else(|| format!("no drop reason `{name}`: weft monitor --help lists them"))
        };
        Ok((port, reason.map(find).transpose()?))
    }
}

/// A short-lived cache of the logical flows that decided megaflows.
struct DecidingFlows<'d> {
    daemon: &'d Daemon,
    cached: HashMap<MegaflowId, Option<FlowRef>>,
    since: Instant,
}

impl<'d> DecidingFlows<'d> {
    fn new(daemon: &'d Daemon) -> Self {
        Self { daemon, cached: HashMap::new(), since: Instant::now() }
    }

    /// The last flow that the packets of `megaflow` matched.
    fn last(&mut self, megaflow: MegaflowId) -> Option<FlowRef> {
        if self.since.elapsed() > FLOW_CACHE_AGE || self.cached.len() >= FLOW_CACHE_SIZE {
            self.cached.clear();
            self.since = Instant::now();
        }
        let query = || {
            let flows = self.daemon.switch.decided_by(megaflow)?;
            flows.last().map(|flow| FlowRef::from(&**flow))
        };
        self.cached.entry(megaflow).or_insert_with(query).clone()
    }
}

fn drop_row(
    deployment: &Deployment,
    packet: DroppedPacket,
    flow: Option<FlowRef>,
    missed: u64,
) -> DropRow {
    let DroppedPacket { time, port, reason, len, mut head, .. } = packet;
    // `head` has only the first bytes of the frame. Key extraction rejects a frame that is shorter
    // than its headers claim, so zeros replace the missing bytes.
    head.resize(len.clamp(head.len(), PacketBuf::MAX_FRAME), 0);
    let key = flow::extract(&PacketBuf::from_bytes(&head), port, None);
    DropRow {
        time: Utc(time).to_string(),
        port: deployment.port_name(port),
        reason: reason.name().to_owned(),
        meaning: reason.meaning().to_owned(),
        len,
        packet: key.map_or_else(|_| String::new(), |key| key.to_string()),
        flow,
        missed,
    }
}

/// Nanoseconds since 1970-01-01 UTC; 0 for earlier times.
pub(super) fn epoch_ns(time: SystemTime) -> u64 {
    u64::try_from(since_epoch(time).as_nanos()).unwrap_or(u64::MAX)
}

/// Two hexadecimal digits per byte, without separators.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half & 0xf)]);
    bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_hex_writes_two_digits_per_byte() {
        assert_eq!(to_hex(&[0, 1, 0xab, 0xff]), "0001abff");
    }
}
