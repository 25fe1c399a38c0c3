//! Packets that are not delivered, and frames of a port, as they happen.
//!
//! The datapath copies into a queue with a limit; a client that is too slow misses copies and is told how many. It holds up
//! nobody but itself.

use super::Daemon;
use super::deployed::Deployed;
use crate::clock::{Utc, since_epoch};
use crate::control::Client;
use crate::control::answers::{CaptureStart, DropRow, FlowRef, FrameRow};
use datapath::megaflow::MegaflowId;
use datapath::watch::{CapturedFrame, Direction, DroppedPacket, Watching};
use flow::DropReason;
use packet::PacketBuf;
use serde_json::json;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

/// How often it is looked whether a client has hung up for which there is nothing.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Rows written together.
const BATCH: usize = 256;
/// So long, and so many, flows that decided are remembered: whoever drops one packet drops many.
const REMEMBERED: (Duration, usize) = (Duration::from_secs(1), 1024);

impl Daemon {
    /// Streams packets that are not delivered.
    pub(super) fn drops(
        &self,
        port: Option<&str>,
        reason: Option<&str>,
        client: &mut Client,
    ) -> io::Result<()> {
        let wanted = self.in_use().wanted_drops(port, reason);
        let (port, reason) = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return client.refuse(&error),
        };
        let watching = match self.datapath.watch_drops() {
            Ok(watching) => watching,
            Err(error) => return client.fail(&error.to_string()),
        };
        client.ok(&json!({}))?;
        let mut decided = Decided { daemon: self, known: HashMap::new(), since: Instant::now() };
        let mut missed = 0;
        stream(&watching, client, |client, dropped: Vec<DroppedPacket>| {
            let in_use = self.in_use();
            for packet in dropped {
                missed += packet.missed;
                let is_wanted = port.is_none_or(|port| port == packet.port)
                    && reason.is_none_or(|reason| reason == packet.reason);
                if is_wanted {
                    let flow = packet.megaflow.and_then(|megaflow| decided.by(megaflow));
                    client.row(&drop_row(&in_use, packet, flow, std::mem::take(&mut missed)))?;
                }
            }
            Ok(())
        })
    }

    /// Streams the frames that a guest sends and gets.
    pub(super) fn capture(
        &self,
        port: &str,
        snap_bytes: usize,
        client: &mut Client,
    ) -> io::Result<()> {
        let number = match self.in_use().port(port) {
            Ok(port) => port.port,
            Err(error) => return client.refuse(&error),
        };
        let watching = match self.datapath.watch_frames(number, snap_bytes) {
            Ok(watching) => watching,
            Err(error) => return client.fail(&error.to_string()),
        };
        let what = format!("port {port} of {}: frames of its guest", self.host);
        client.ok(&CaptureStart { what })?;
        stream(&watching, client, |client, frames: Vec<CapturedFrame>| {
            frames.iter().try_for_each(|frame| {
                let direction = match frame.direction {
                    Direction::FromGuest => "from_guest",
                    Direction::ToGuest => "to_guest",
                };
                client.row(&FrameRow {
                    time_ns: nanos(frame.time),
                    direction: direction.to_owned(),
                    len: frame.len,
                    bytes: hexadecimal(&frame.bytes),
                    missed: frame.missed,
                })
            })
        })
    }
}

/// Hands what comes to `write`, in batches, until the client hangs up or the datapath ends.
fn stream<T>(
    watching: &Watching<T>,
    client: &mut Client,
    mut write: impl FnMut(&mut Client, Vec<T>) -> io::Result<()>,
) -> io::Result<()> {
    client.flush()?;
    let mut look = Instant::now() + LOOK;
    loop {
        match watching.recv_timeout(LOOK) {
            Ok(first) => {
                let batch = std::iter::once(first).chain(watching.try_iter()).take(BATCH);
                write(client, batch.collect())?;
                client.flush()?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        // Of what comes there may be nothing that the client wants.
        if Instant::now() >= look {
            if client.has_hung_up() {
                return Ok(());
            }
            look = Instant::now() + LOOK;
        }
    }
}

impl Deployed {
    fn wanted_drops(
        &self,
        port: Option<&str>,
        reason: Option<&str>,
    ) -> Result<(Option<flow::PortNo>, Option<DropReason>), String> {
        let port = port.map(|name| self.any_port(name)).transpose()?;
        let find = |name: &str| {
            let found = DropReason::ALL.iter().find(|reason| reason.name() == name).copied();
            found.ok_or_else(|| format!("there is no drop reason `{name}`"))
        };
        Ok((port, reason.map(find).transpose()?))
    }
}

/// Which flows decided what megaflows do.
struct Decided<'d> {
    daemon: &'d Daemon,
    known: HashMap<MegaflowId, Option<FlowRef>>,
    since: Instant,
}

impl Decided<'_> {
    /// The flow that decided last.
    fn by(&mut self, megaflow: MegaflowId) -> Option<FlowRef> {
        let (time, most) = REMEMBERED;
        if self.since.elapsed() > time || self.known.len() >= most {
            self.known.clear();
            self.since = Instant::now();
        }
        let ask = || {
            let flows = self.daemon.switch.decided_by(megaflow)?;
            flows.last().map(|flow| FlowRef::from(&**flow))
        };
        self.known.entry(megaflow).or_insert_with(ask).clone()
    }
}

fn drop_row(
    in_use: &Deployed,
    packet: DroppedPacket,
    flow: Option<FlowRef>,
    missed: u64,
) -> DropRow {
    let DroppedPacket { time, port, reason, len, mut head, .. } = packet;
    // What was cut off is not read, but its length counts.
    head.resize(len.clamp(head.len(), PacketBuf::MAX_FRAME), 0);
    let key = flow::extract(&PacketBuf::from_bytes(&head), port, None);
    DropRow {
        time: Utc(time).to_string(),
        port: in_use.port_name(port),
        reason: reason.name().to_owned(),
        meaning: reason.meaning().to_owned(),
        len,
        packet: key.map_or_else(|_| String::new(), |key| key.to_string()),
        flow,
        missed,
    }
}

pub(super) fn nanos(time: SystemTime) -> u64 {
    u64::try_from(since_epoch(time).as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half & 0xf)]);
    bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_two_digits_each() {
        assert_eq!(hexadecimal(&[0, 1, 0xab, 0xff]), "0001abff");
    }
}
