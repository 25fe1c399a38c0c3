//! Connection tracking as an action, and the passes of a packet.
//!
//! A packet that goes through the connection tracker is looked up again afterwards, with the state
//! of its connection in its key. That is its next *pass*. A [`Recirculation`] names the state of
//! the pipeline in which the next pass begins.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// The most passes of one packet.
pub const MAX_PASSES: u8 = 16;

/// The bits of [`Field::CtState`](crate::Field::CtState), as in Open vSwitch.
pub mod ct_state {
    /// The packet opens a connection, which is not committed.
    pub const NEW: u8 = 0x01;
    /// The packet belongs to a committed connection.
    pub const ESTABLISHED: u8 = 0x02;
    /// The packet is related to a committed connection: an ICMP error about it.
    pub const RELATED: u8 = 0x04;
    /// The packet travels against the direction in which the connection was opened.
    pub const REPLY: u8 = 0x08;
    /// The packet fits no connection, or cannot be tracked.
    pub const INVALID: u8 = 0x10;
    /// The packet has passed the connection tracker.
    pub const TRACKED: u8 = 0x20;
    /// The packet's source address or port was translated.
    pub const SRC_NAT: u8 = 0x40;
    /// The packet's destination address or port was translated.
    pub const DST_NAT: u8 = 0x80;

    /// The names of the bits, the lowest first.
    pub const NAMES: [&str; 8] = ["new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"];

    /// The bit with this name.
    pub fn from_name(name: &str) -> Option<u8> {
        NAMES.iter().position(|known| *known == name).map(|bit| 1 << bit)
    }

    /// The names of the bits in `state`, joined by `|`: `est|trk`.
    pub fn names(state: u8) -> String {
        let names = NAMES.iter().enumerate().filter(|(bit, _)| state >> bit & 1 != 0);
        names.map(|(_, name)| *name).collect::<Vec<_>>().join("|")
    }
}

/// The number of a saved state of the pipeline, 1 to 2^48 - 1. A number is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RecircId(u64);

impl RecircId {
    /// The largest number.
    pub const MAX: u64 = (1 << 48) - 1;

    /// `None` for 0 and for numbers above [`MAX`](Self::MAX).
    pub const fn new(number: u64) -> Option<Self> {
        if number == 0 || number > Self::MAX { None } else { Some(Self(number)) }
    }

    /// The number.
    pub const fn value(self) -> u64 {
        self.0
    }
}

impl fmt::Display for RecircId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A reference to a [`RecircId`]. The saved state of the pipeline is kept while a clone of the
/// reference exists: in an action, or with a packet that is between two passes.
#[derive(Clone)]
pub struct Recirculation(Arc<RecircId>);

/// A weak [`Recirculation`]: it does not keep the saved state alive.
#[derive(Clone, Debug)]
pub struct WeakRecirculation(Weak<RecircId>);

impl Recirculation {
    /// Begins to use a number.
    pub fn new(id: RecircId) -> Self {
        Self(Arc::new(id))
    }

    /// The number.
    pub fn id(&self) -> RecircId {
        *self.0
    }

    /// A reference that does not keep the saved state alive.
    pub fn downgrade(&self) -> WeakRecirculation {
        WeakRecirculation(Arc::downgrade(&self.0))
    }
}

impl WeakRecirculation {
    /// `None` when the number is no longer in use.
    pub fn upgrade(&self) -> Option<Recirculation> {
        self.0.upgrade().map(Recirculation)
    }

    /// True while the number is in use.
    pub fn is_used(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl PartialEq for Recirculation {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Recirculation {}

impl Hash for Recirculation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl fmt::Debug for Recirculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recirculation({})", self.id())
    }
}

/// A request to the connection tracker for a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CtAction {
    /// The zone. Connections of different zones are unrelated.
    pub zone: u16,
    /// Network address translation; `None` leaves the packet as it is.
    pub nat: Option<CtNat>,
    /// Commits the packet's connection.
    pub commit: Option<CtCommit>,
    /// Ignores the results that the tracker found in earlier passes. True if, in this pass, the
    /// pipeline made the packet untracked or changed its addresses or ports. Also true for a packet
    /// that a service generated.
    pub fresh: bool,
    /// Where the packet's next pass begins; `None` for an action that only commits.
    pub recirculation: Option<Recirculation>,
}

/// How a connection is committed. Bits outside a mask stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct CtCommit {
    /// The value of the mark, 0 outside the mask.
    pub mark: u32,
    /// The bits of the mark to write.
    pub mark_mask: u32,
    /// The value of the label, 0 outside the mask.
    pub label: u128,
    /// The bits of the label to write.
    pub label_mask: u128,
    /// A packet in the reply direction ends the connection and opens a new one in its direction.
    pub force: bool,
}

/// Network address translation of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CtNat {
    /// Applies the translation of the committed connection, in the direction of the packet.
    Existing,
    /// Translates the source of a new connection into the range. Packets of a committed connection
    /// are translated as by `Existing`.
    Source(NatRange),
    /// Translates the destination of a new connection into the range. Packets of a committed
    /// connection are translated as by `Existing`.
    Destination(NatRange),
}

/// A pass through the connection tracker that does not change the packet's connection: the
/// pipeline's request and the tracker's result. Both are the same for all such packets.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SteadyPass {
    /// The zone.
    pub zone: u16,
    /// Network address translation.
    pub nat: Option<CtNat>,
    /// A commit, which changes nothing.
    pub commit: Option<CtCommit>,
    /// As [`CtAction::fresh`].
    pub fresh: bool,
    /// False for an action that only commits.
    pub recirculates: bool,
    /// The result.
    pub result: TrackResult,
}

/// The result of the connection tracker for a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct TrackResult {
    /// The bits of [`ct_state`].
    pub state: u8,
    /// The mark of the connection.
    pub mark: u32,
    /// The label of the connection.
    pub label: u128,
    /// The address and port changes that NAT requires.
    pub rewrite: Rewrite,
}

/// How network address translation rewrites a packet. `None` leaves the value as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Rewrite {
    /// The new source address.
    pub src: Option<IpAddr>,
    /// The new destination address.
    pub dst: Option<IpAddr>,
    /// The new source port.
    pub src_port: Option<u16>,
    /// The new destination port.
    pub dst_port: Option<u16>,
}

/// The addresses and ports that a translation may choose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NatRange {
    /// The first address; `0.0.0.0` or `::` keeps the address of the packet.
    pub first: IpAddr,
    /// The last address, of the same family.
    pub last: IpAddr,
    /// The first and the last port; `None` for any port, preferably the packet's own.
    pub ports: Option<(u16, u16)>,
    /// Choose a port at random, even if the packet's own port is free.
    pub random: bool,
    /// Derive the address from the packet's source address alone, so that a restart does not change
    /// it.
    pub persistent: bool,
}

impl NatRange {
    /// One address, and any port.
    pub const fn address(address: IpAddr) -> Self {
        Self { first: address, last: address, ports: None, random: false, persistent: false }
    }
}

impl fmt::Display for NatRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (first, last) if first == last => write!(f, "{first}")?,
            (first, last) => write!(f, "{first}-{last}")?,
        }
        match self.ports {
            None => {}
            Some((first, last)) if first == last => write!(f, ":{first}")?,
            Some((first, last)) => write!(f, ":{first}-{last}")?,
        }
        for (flag, word) in [(self.persistent, ",persistent"), (self.random, ",random")] {
            if flag {
                f.write_str(word)?;
            }
        }
        Ok(())
    }
}

/// For example: `ct(commit,zone=5,nat(dst=10.0.0.1:80),recirc(0x3))`
impl fmt::Display for CtAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ct(")?;
        if let Some(commit) = &self.commit {
            f.write_str(if commit.force { "commit,force," } else { "commit," })?;
            if commit.mark_mask != 0 {
                write!(f, "mark={:#x}/{:#x},", commit.mark, commit.mark_mask)?;
            }
            if commit.label_mask != 0 {
                write!(f, "label={:#x}/{:#x},", commit.label, commit.label_mask)?;
            }
        }
        write!(f, "zone={}", self.zone)?;
        match &self.nat {
            None => {}
            Some(CtNat::Existing) => f.write_str(",nat")?,
            Some(CtNat::Source(range)) => write!(f, ",nat(src={range})")?,
            Some(CtNat::Destination(range)) => write!(f, ",nat(dst={range})")?,
        }
        if let Some(recirculation) = &self.recirculation {
            write!(f, ",recirc({})", recirculation.id())?;
        }
        f.write_str(")")
    }
}
