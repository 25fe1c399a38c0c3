//! Sends and receives single Ethernet frames on the interfaces of a lab.

use super::PATIENCE;
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use packet::{PacketBuf, complete_checksum};
use std::time::{Duration, Instant};
use testkit::host::TestHost;
use wire::MacAddr;

/// The EtherType for local experiments (IEEE 802, clause 9), to which no kernel responds.
pub const EXPERIMENT: u16 = 0x88b5;
/// The minimum length of a frame without its frame check sequence.
const MIN_FRAME: usize = 60;

/// The offset of the outermost VLAN tag. A packet socket delivers this tag outside of the frame.
const TAG: usize = 12;

/// An Ethernet frame, padded to the minimum length.
pub fn frame(dst: MacAddr, src: MacAddr, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [&dst.0[..], &src.0, &ethertype.to_be_bytes(), payload].concat();
    bytes.resize(bytes.len().max(MIN_FRAME), 0);
    bytes
}

/// A frame with the payload `text` and the EtherType for experiments.
pub fn note(dst: MacAddr, src: MacAddr, text: &str) -> Vec<u8> {
    frame(dst, src, EXPERIMENT, text.as_bytes())
}

/// A packet socket that receives every frame of an interface and sends frames through it.
pub struct FrameSocket(PacketSocket);

impl FrameSocket {
    /// Opens a socket on `device` of a host or guest. It receives only later frames.
    pub fn open(netns: &TestHost, device: &str) -> Self {
        let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
        let open = || PacketSocket::open_name(device, &SocketFilter::everything(), options);
        Self(netns.run(open).expect("a packet socket can be opened"))
    }

    /// Sends a frame without offloads.
    pub fn send(&self, frame: &[u8]) {
        self.send_packet(&PacketBuf::from_bytes(frame));
    }

    /// Sends a frame whose offload requests are passed to the device.
    pub fn send_packet(&self, packet: &PacketBuf) {
        self.0.send(packet).expect("a frame can be sent");
    }

    /// The next frame, if one arrives before `deadline`. A partial checksum is completed, like by a
    /// device without checksum offload.
    fn next(&self, deadline: Instant) -> Option<Vec<u8>> {
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        loop {
            match self.0.recv(&mut packet) {
                Ok(Some(received)) => {
                    // A super-packet's partial checksum is left as it is.
                    let _ = complete_checksum(&mut packet);
                    let mut frame = packet.to_vec();
                    if let Some(tag) = received.vlan {
                        let tag = [tag.tpid, tag.tci].map(u16::to_be_bytes).concat();
                        frame.splice(TAG..TAG, tag);
                    }
                    return Some(frame);
                }
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(None) => return None,
                Err(error) => panic!("a packet socket fails: {error}"),
            }
        }
    }

    /// The frames that have arrived and have not been read yet.
    pub fn pending(&self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.next(Instant::now())).collect()
    }

    /// All frames up to and including the first one for which `last` returns true.
    ///
    /// # Panics
    /// That frame does not arrive within [`PATIENCE`].
    pub fn until(&self, what: &str, last: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut frames = Vec::new();
        while let Some(frame) = self.next(deadline) {
            let found = last(&frame);
            frames.push(frame);
            if found {
                return frames;
            }
        }
        panic!("waited {PATIENCE:?} in vain for {what}; {} other frames arrived", frames.len());
    }

    /// All frames up to and including the [`note`] with this `text`.
    pub fn until_note(&self, text: &str) -> Vec<Vec<u8>> {
        self.until(&format!("the frame that says {text:?}"), |frame| contains(frame, text))
    }
}

/// True when the frame contains `text`.
pub fn contains(frame: &[u8], text: impl AsRef<[u8]>) -> bool {
    let text = text.as_ref();
    frame.windows(text.len()).any(|window| window == text)
}

/// How many of the frames contain `text`.
pub fn count(frames: &[Vec<u8>], text: &str) -> usize {
    frames.iter().filter(|frame| contains(frame, text)).count()
}
