//! Random SCTP packets: an association that opens and closes, with some unexpected packets.

use testkit::random::Random;

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const HEARTBEAT: u8 = 4;
const HEARTBEAT_ACK: u8 = 5;
const ABORT: u8 = 6;
const SHUTDOWN: u8 = 7;
const SHUTDOWN_ACK: u8 = 8;
const ERROR: u8 = 9;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;

/// The packets of an association, each with its sender (true for the second end).
const SCRIPT: [(bool, u8); 12] = [
    (false, INIT),
    (true, INIT_ACK),
    (false, COOKIE_ECHO),
    (true, COOKIE_ACK),
    (false, 0),
    (true, 3),
    (true, HEARTBEAT),
    (false, HEARTBEAT_ACK),
    (false, 0),
    (false, SHUTDOWN),
    (true, SHUTDOWN_ACK),
    (false, SHUTDOWN_COMPLETE),
];

#[derive(Clone, Debug)]
pub struct SctpPair {
    /// The verification tag of packets to each end.
    tags: [u32; 2],
    next: usize,
}

impl SctpPair {
    pub fn new(random: &mut Random) -> Self {
        Self { tags: [0, 1].map(|_| random.word() as u32 | 1), next: 0 }
    }

    /// The next packet, and true if the second end sends it.
    pub fn packet(&mut self, random: &mut Random, ports: [u16; 2]) -> (bool, Vec<u8>) {
        let (reply, kind) = if random.once_in(5) {
            let kinds = [INIT, INIT_ACK, 0, 3, HEARTBEAT, HEARTBEAT_ACK, ABORT, SHUTDOWN]
                .into_iter()
                .chain([SHUTDOWN_ACK, ERROR, COOKIE_ECHO, COOKIE_ACK, SHUTDOWN_COMPLETE, 200]);
            let kinds: Vec<u8> = kinds.collect();
            (random.once_in(2), random.pick(&kinds))
        } else {
            let step = SCRIPT[self.next.min(SCRIPT.len() - 1)];
            self.next += 1;
            step
        };
        let mut tag = if kind == INIT { 0 } else { self.tags[usize::from(!reply)] };
        if random.once_in(10) {
            tag = random.pick(&[0, 1, self.tags[usize::from(reply)]]);
        }
        let flags = u8::from(matches!(kind, ABORT | SHUTDOWN_COMPLETE) && random.once_in(4));
        let own = self.tags[usize::from(reply)];
        let mut chunks = chunk(kind, flags, own);
        if random.once_in(8) {
            chunks.extend(chunk(random.pick(&[0, 3, ERROR, COOKIE_ACK]), 0, own));
        }
        let ports = if reply { [ports[1], ports[0]] } else { ports };
        let header = [&ports.map(u16::to_be_bytes).concat()[..], &tag.to_be_bytes(), &[0; 4]];
        (reply, [header.concat(), chunks].concat())
    }
}

/// A chunk; INIT and INIT-ACK announce `tag`.
fn chunk(kind: u8, flags: u8, tag: u32) -> Vec<u8> {
    let mut body = vec![0; 16];
    body[..4].copy_from_slice(&tag.to_be_bytes());
    let len = 4 + body.len() as u16;
    [&[kind, flags][..], &len.to_be_bytes(), &body].concat()
}
