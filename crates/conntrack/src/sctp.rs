//! The SCTP state machine, as nf_conntrack runs it (RFC 9260 sections 4, 8.4 and 8.5).

use crate::headers::{Chunk, SctpPacket};
use crate::{Direction, Invalid, Timeout};

/// The state of an SCTP association.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum SctpState {
    /// No chunk was seen yet.
    None,
    /// Closed, or only an INIT was seen.
    Closed,
    /// An INIT-ACK was seen.
    CookieWait,
    /// A COOKIE-ECHO was seen.
    CookieEchoed,
    /// A COOKIE-ACK was seen.
    Established,
    /// A SHUTDOWN was seen in the original direction.
    ShutdownSent,
    /// A SHUTDOWN was seen in the reply direction.
    ShutdownReceived,
    /// A SHUTDOWN-ACK was seen.
    ShutdownAckSent,
    /// A HEARTBEAT was seen on a path without other packets (multihoming).
    HeartbeatSent,
}

impl SctpState {
    /// The name in output, the same as in nf_conntrack.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Closed => "CLOSED",
            Self::CookieWait => "COOKIE_WAIT",
            Self::CookieEchoed => "COOKIE_ECHOED",
            Self::Established => "ESTABLISHED",
            Self::ShutdownSent => "SHUTDOWN_SENT",
            Self::ShutdownReceived => "SHUTDOWN_RECD",
            Self::ShutdownAckSent => "SHUTDOWN_ACK_SENT",
            Self::HeartbeatSent => "HEARTBEAT_SENT",
        }
    }

    /// Every state, in the order of their numbers.
    const ALL: [Self; 9] = [
        Self::None,
        Self::Closed,
        Self::CookieWait,
        Self::CookieEchoed,
        Self::Established,
        Self::ShutdownSent,
        Self::ShutdownReceived,
        Self::ShutdownAckSent,
        Self::HeartbeatSent,
    ];

    pub(crate) const fn timeout(self) -> Timeout {
        match self {
            Self::None | Self::Closed => Timeout::SctpClosed,
            Self::CookieWait => Timeout::SctpCookieWait,
            Self::CookieEchoed => Timeout::SctpCookieEchoed,
            Self::Established => Timeout::SctpEstablished,
            Self::ShutdownSent => Timeout::SctpShutdownSent,
            Self::ShutdownReceived => Timeout::SctpShutdownReceived,
            Self::ShutdownAckSent => Timeout::SctpShutdownAckSent,
            Self::HeartbeatSent => Timeout::SctpHeartbeatSent,
        }
    }
}

/// A tracked association.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sctp {
    /// The verification tag that packets of each direction carry.
    tags: [u32; 2],
    state: SctpState,
    /// For each direction, whether an INIT was sent in it while the association was not open. Both
    /// ends may have sent one (section 5.2.1).
    initiated: [bool; 2],
    /// The direction of a HEARTBEAT with an unknown tag, which a HEARTBEAT-ACK may confirm.
    unknown_tag: Option<Direction>,
}

/// The result of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// `timeout` is `None` when the packet does not prolong the life of the association.
    Accept {
        timeout: Option<Timeout>,
        established: bool,
    },
    Invalid(Invalid),
}

impl Sctp {
    /// The tags of both directions.
    pub const fn save(&self) -> u64 {
        (self.tags[0] as u64) << 32 | self.tags[1] as u64
    }

    /// The directions in which an INIT was sent: a bit for each.
    pub const fn initiated(&self) -> u8 {
        self.initiated[0] as u8 | (self.initiated[1] as u8) << 1
    }

    /// The association in this state, with the results of [`Sctp::save`] and [`Sctp::initiated`].
    /// `None` if there is no such state.
    pub fn restore(state: u8, saved: u64, initiated: u8) -> Option<Self> {
        let state = *SctpState::ALL.get(usize::from(state))?;
        let tags = [(saved >> 32) as u32, saved as u32];
        let initiated = match initiated {
            0..=3 => [initiated & 1 != 0, initiated & 2 != 0],
            _ => return None,
        };
        Some(Self { tags, state, initiated, unknown_tag: None })
    }

    /// The association that `packet` begins.
    pub fn new(packet: &SctpPacket) -> Result<Self, Invalid> {
        let (mut tags, mut initiated) = ([0; 2], [false; 2]);
        // Only control chunks that request a reply can begin an association.
        if packet.has_other {
            return Err(Invalid::NotFirst);
        }
        for chunk in packet.chunks() {
            match chunk {
                Chunk::Abort { .. } | Chunk::ShutdownComplete { .. } | Chunk::CookieAck => {
                    return Err(Invalid::NotFirst);
                }
                Chunk::Init { .. } if packet.tag != 0 => return Err(Invalid::SctpTag),
                Chunk::Init { tag } => {
                    tags[1] = tag;
                    initiated[0] = true;
                }
                Chunk::Heartbeat => tags[0] = packet.tag,
                // The reply is a SHUTDOWN COMPLETE that reflects the tag (section 8.5.1 C).
                Chunk::ShutdownAck => tags[1] = packet.tag,
                _ => {}
            }
        }
        Ok(Self { tags, state: SctpState::None, initiated, unknown_tag: None })
    }

    pub const fn state(&self) -> SctpState {
        self.state
    }

    /// Runs the state machine. `is_committed` is false for the packet that begins an association.
    pub fn track(
        &mut self,
        direction: Direction,
        packet: &SctpPacket,
        is_committed: bool,
    ) -> Outcome {
        let own = self.tags[direction.index()];
        if packet.tag != own && !packet.chunks().any(|chunk| checks_tag_itself(&chunk)) {
            return Outcome::Invalid(Invalid::SctpTag);
        }
        let (mut ignore, mut established) = (false, false);
        for chunk in packet.chunks() {
            match self.check_tag(direction, packet, &chunk, ignore) {
                TagCheck::Right => {}
                TagCheck::Unknown => {
                    ignore = true;
                    continue;
                }
                TagCheck::Wrong => return Outcome::Invalid(Invalid::SctpTag),
            }
            let Some(new) = transition(direction, &chunk, self.state) else {
                return Outcome::Invalid(Invalid::OutOfState);
            };
            if !self.record_tag(direction, &chunk) {
                return Outcome::Invalid(Invalid::SctpTag);
            }
            // The timeout is not extended. Otherwise a client that retries could keep its entry,
            // and its NAT, forever.
            let repeated = (self.state, new) == (SctpState::Closed, SctpState::Closed);
            ignore |= repeated && is_committed && matches!(chunk, Chunk::Init { .. });
            established |= new == SctpState::Established && self.state != new;
            self.state = new;
        }
        let timeout = (!ignore).then_some(self.state.timeout());
        Outcome::Accept { timeout, established }
    }

    /// Records the tag that an INIT or INIT-ACK announces. Returns false for an INIT-ACK that
    /// contradicts an earlier announcement.
    fn record_tag(&mut self, direction: Direction, chunk: &Chunk) -> bool {
        let (own, other) = (direction.index(), direction.reversed().index());
        match *chunk {
            // A retransmitted INIT announces nothing.
            Chunk::Init { tag } if tag != self.tags[other] => {
                if self.initiated == [true, true] {
                    self.initiated[other] = false;
                }
                self.initiated[own] = true;
                self.tags[other] = tag;
            }
            Chunk::InitAck { tag } => {
                let known = self.tags[other];
                let answers_nothing = !self.initiated[other] && known != 0;
                let collides = self.initiated == [true, true];
                if (answers_nothing || collides) && known != tag {
                    return false;
                }
                self.tags[other] = tag;
            }
            _ => {}
        }
        true
    }

    /// Checks the verification tag of a packet with this chunk (RFC 9260 section 8.5.1).
    fn check_tag(
        &mut self,
        direction: Direction,
        packet: &SctpPacket,
        chunk: &Chunk,
        ignore: bool,
    ) -> TagCheck {
        let (own, other) = (self.tags[direction.index()], self.tags[direction.reversed().index()]);
        let is = |expected| {
            if packet.tag == expected { TagCheck::Right } else { TagCheck::Wrong }
        };
        match *chunk {
            Chunk::Init { .. } => is(0),
            Chunk::Abort { reflects_tag } | Chunk::ShutdownComplete { reflects_tag } => {
                is(if reflects_tag { other } else { own })
            }
            Chunk::CookieEcho => is(own),
            Chunk::CookieAck => {
                self.initiated = [false; 2];
                TagCheck::Right
            }
            Chunk::Heartbeat | Chunk::HeartbeatAck if own == 0 => {
                self.tags[direction.index()] = packet.tag;
                TagCheck::Right
            }
            Chunk::Heartbeat | Chunk::HeartbeatAck if own == packet.tag => {
                self.unknown_tag = None;
                TagCheck::Right
            }
            // On a path with only heartbeats, an unknown tag may mean that the peer has restarted.
            Chunk::Heartbeat | Chunk::HeartbeatAck if packet.has_data || ignore => TagCheck::Wrong,
            Chunk::Heartbeat => {
                self.unknown_tag = Some(direction);
                TagCheck::Unknown
            }
            Chunk::HeartbeatAck if self.unknown_tag == Some(direction.reversed()) => {
                self.unknown_tag = None;
                self.tags[direction.index()] = packet.tag;
                self.tags[direction.reversed().index()] = 0;
                TagCheck::Right
            }
            Chunk::HeartbeatAck => TagCheck::Wrong,
            _ => TagCheck::Right,
        }
    }
}

enum TagCheck {
    Right,
    /// The tag is unknown, but may be right.
    Unknown,
    Wrong,
}

/// True for chunks with their own rule for the verification tag. The tag of the packet as a whole
/// is then not compared.
const fn checks_tag_itself(chunk: &Chunk) -> bool {
    matches!(
        chunk,
        Chunk::Init { .. }
            | Chunk::ShutdownComplete { .. }
            | Chunk::CookieEcho
            | Chunk::Abort { .. }
            | Chunk::ShutdownAck
            | Chunk::Heartbeat
            | Chunk::HeartbeatAck
    )
}

/// The state that follows `state` after `chunk`; `None` when that is not possible.
fn transition(direction: Direction, chunk: &Chunk, state: SctpState) -> Option<SctpState> {
    use Direction::{Original, Reply};
    use SctpState::{
        Closed, CookieEchoed, CookieWait, Established, HeartbeatSent, None as Nothing,
        ShutdownAckSent, ShutdownReceived, ShutdownSent,
    };
    if direction == Reply && state == Nothing {
        return None;
    }
    if direction == Reply && state == HeartbeatSent {
        return match chunk {
            Chunk::Heartbeat => Some(HeartbeatSent),
            Chunk::HeartbeatAck => Some(Established),
            _ => None,
        };
    }
    let next = match (chunk, direction, state) {
        (Chunk::Heartbeat, _, Nothing | HeartbeatSent)
        | (Chunk::HeartbeatAck, _, HeartbeatSent) => HeartbeatSent,
        (Chunk::ShutdownAck, Original, Nothing | HeartbeatSent) => ShutdownAckSent,
        (Chunk::Init { .. }, Original, HeartbeatSent) => CookieWait,
        (_, _, Nothing | HeartbeatSent) | (Chunk::Abort { .. }, _, _) => Closed,

        (Chunk::Init { .. }, Original, ShutdownSent | ShutdownReceived) => Closed,
        (Chunk::InitAck { .. }, Reply, Closed) => CookieWait,
        (Chunk::CookieEcho, _, CookieWait) => CookieEchoed,
        (Chunk::CookieAck, _, CookieEchoed) => Established,
        (Chunk::Error, Reply, CookieEchoed) => Closed,
        (Chunk::Shutdown, Original, Established) => ShutdownSent,
        (Chunk::Shutdown, Reply, Established) => ShutdownReceived,
        (Chunk::ShutdownAck, _, ShutdownSent | ShutdownReceived) => ShutdownAckSent,
        (Chunk::ShutdownComplete { .. }, _, ShutdownAckSent) => Closed,
        (_, _, unchanged) => unchanged,
    };
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn association_is_the_same_when_it_is_restored() {
        for initiated in 0..4 {
            let state = SctpState::CookieWait as u8;
            let sctp = Sctp::restore(state, 7 << 32 | 9, initiated).unwrap();
            assert_eq!((sctp.state() as u8, sctp.save()), (state, 7 << 32 | 9));
            assert_eq!(sctp.initiated(), initiated);
        }
        assert!(Sctp::restore(0, 0, 4).is_none());
        assert!(Sctp::restore(u8::MAX, 0, 0).is_none());
    }
}
