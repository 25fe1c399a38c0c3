//! Random TCP segments: mostly those of a real connection, some of them wrong.

use testkit::random::Random;

use crate::support::{ACK, FIN, PSH, RST, SYN, TcpSegment, URG};

/// Differences from the right sequence or acknowledgement number, inside and outside the window.
const ERRORS: [u32; 12] = [
    1,
    0_u32.wrapping_sub(1),
    100,
    0_u32.wrapping_sub(100),
    3000,
    0_u32.wrapping_sub(3000),
    65_000,
    0_u32.wrapping_sub(66_002),
    70_000,
    0_u32.wrapping_sub(70_000),
    10_000_000,
    0x8000_0000,
];

/// One end of a connection.
#[derive(Clone, Debug)]
struct End {
    next: u32,
    window: u16,
    has_sent_syn: bool,
    last: Option<TcpSegment>,
}

/// Both ends of a connection.
#[derive(Clone, Debug)]
pub struct TcpPair {
    ends: [End; 2],
}

impl TcpPair {
    pub fn new(random: &mut Random) -> Self {
        let ends = [0, 1].map(|_| {
            // Some initial numbers are close to the wrap-around.
            let any = random.word() as u32;
            let base = random.pick(&[0, 0xffff_ff00, 0x7fff_ff00, any]);
            let window = random.pick(&[0, 1, 500, 3000, 65_535, 65_535]);
            End { next: base, window, has_sent_syn: false, last: None }
        });
        Self { ends }
    }

    /// The next segment, without ports, and true if the second end sends it.
    pub fn segment(&mut self, random: &mut Random) -> (bool, TcpSegment) {
        let (from, mut segment) = match random.below(10) {
            0 => self.wrong(random),
            1 => self.repeated(random),
            _ => self.natural(random),
        };
        if random.once_in(10) {
            segment.seq = segment.seq.wrapping_add(random.pick(&ERRORS));
        }
        if random.once_in(10) {
            segment.ack = segment.ack.wrapping_add(random.pick(&ERRORS));
        }
        if random.once_in(12) {
            segment.window = random.pick(&[0, 1, 100, 1000, 30_000, 65_535]);
        }
        self.record(from, &segment);
        (from == 1, segment)
    }

    /// Advances the sender's next sequence number, unless the segment is an old one.
    fn record(&mut self, from: usize, segment: &TcpSegment) {
        let control = u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
        let end = segment.seq.wrapping_add(segment.payload_len as u32 + control);
        let sender = &mut self.ends[from];
        let is_close = end.wrapping_sub(sender.next) < 200_000;
        if is_close || segment.flags & SYN != 0 {
            sender.next = end;
        }
        sender.has_sent_syn |= segment.flags & SYN != 0;
        sender.last = Some(segment.clone());
    }

    fn with(&self, from: usize, flags: u8, payload_len: usize) -> TcpSegment {
        let ack = if flags & ACK == 0 { 0 } else { self.ends[1 - from].next };
        TcpSegment {
            seq: self.ends[from].next,
            ack,
            flags,
            window: self.ends[from].window,
            payload_len,
            ..TcpSegment::default()
        }
    }

    /// The segment that a real TCP end could send next.
    fn natural(&mut self, random: &mut Random) -> (usize, TcpSegment) {
        let opened = [self.ends[0].has_sent_syn, self.ends[1].has_sent_syn];
        match opened {
            [false, false] if !random.once_in(8) => (0, self.syn(random, 0, SYN)),
            [true, false] if !random.once_in(8) => {
                let flags = if random.once_in(12) { SYN } else { SYN | ACK };
                (1, self.syn(random, 1, flags))
            }
            _ => {
                let from = random.below(2);
                let (flags, len) = match random.below(12) {
                    0 => (FIN | ACK, 0),
                    1 => (FIN | ACK | PSH, 100),
                    2 if random.once_in(3) => (RST | ACK, 0),
                    2 if random.once_in(2) => (RST, 0),
                    3 if random.once_in(3) => (SYN, 0),
                    3..7 => (ACK | PSH, random.pick(&[1, 100, 536, 1400])),
                    _ => (ACK, 0),
                };
                let mut segment = match flags {
                    SYN => self.syn(random, from, SYN),
                    _ => self.with(from, flags, len),
                };
                if random.once_in(10) {
                    segment.options = self.sack(random, from);
                }
                (from, segment)
            }
        }
    }

    fn syn(&mut self, random: &mut Random, from: usize, flags: u8) -> TcpSegment {
        if self.ends[from].has_sent_syn && random.once_in(2) {
            // A new connection with the same ports.
            let ahead = random.pick(&[1000, 1_000_000, 0_u32.wrapping_sub(5000)]);
            self.ends[from].next = self.ends[from].next.wrapping_add(ahead);
        }
        let scale = random.pick(&[0, 2, 7, 14, 15]);
        let mut options = Vec::new();
        for option in [&[2, 4, 5, 0xb4][..], &[1, 3, 3, scale], &[4, 2, 1, 1]] {
            if !random.once_in(3) {
                options.extend(option);
            }
        }
        TcpSegment { options, ..self.with(from, flags, 0) }
    }

    /// A SACK option about data after a gap.
    fn sack(&self, random: &mut Random, from: usize) -> Vec<u8> {
        let other = self.ends[1 - from].next;
        let left = other.wrapping_sub(random.pick(&[0, 100, 2000]));
        let right = left.wrapping_add(random.pick(&[1, 100, 2000, 100_000]));
        let mut option = vec![1, 1, 5, 10];
        option.extend(left.to_be_bytes());
        option.extend(right.to_be_bytes());
        option
    }

    fn repeated(&mut self, random: &mut Random) -> (usize, TcpSegment) {
        let from = random.below(2);
        match self.ends[from].last.clone() {
            Some(last) => (from, last),
            None => self.natural(random),
        }
    }

    /// A segment with random flags and numbers.
    fn wrong(&mut self, random: &mut Random) -> (usize, TcpSegment) {
        let from = random.below(2);
        let flags = random.pick(&[
            0,
            SYN,
            SYN | ACK,
            SYN | FIN,
            SYN | RST,
            SYN | URG,
            FIN,
            FIN | ACK | URG,
            FIN | RST | ACK,
            RST,
            RST | ACK,
            RST | ACK | URG,
            ACK,
            ACK | URG | PSH,
            ACK | 0xc0,
            PSH,
        ]);
        let mut segment = self.with(from, flags, random.pick(&[0, 0, 1, 1000]));
        if random.once_in(3) {
            let any = random.word() as u32;
            segment.seq = random.pick(&[0, 1, any]);
        }
        if random.once_in(3) {
            let any = random.word() as u32;
            segment.ack = random.pick(&[0, 1, any]);
        }
        (from, segment)
    }
}
