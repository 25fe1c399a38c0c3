//! [`Tracked`], the result of tracking a packet, and [`ConnRef`].

use crate::{Direction, Invalid, State, Translation, Tuple, Zone};

/// The slot of a connection in a table. When the connection is removed, another connection may
/// reuse the slot, with another generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnId(pub(crate) u32);

/// A reference to a connection in the state that it had at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnRef {
    /// The connection.
    pub id: ConnId,
    /// Its generation, unique in the table. It changes with each change that affects later packets:
    /// the protocol's state, the first reply, mark and label, and removal. A cached decision that
    /// depends on the connection is valid while the generation is the same.
    ///
    /// Changes of TCP windows and timeouts do not change it.
    pub generation: u64,
}

/// Whether an action of the pipeline applies NAT.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Nat {
    /// Do not apply NAT: `ct(...)` without `nat`, `ct_next`.
    Ignore,
    /// Apply the NAT of the connection: `ct(nat)`, `ct_dnat`, `ct_snat`.
    Apply,
}

/// The result of tracking a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tracked {
    /// `ct_state`.
    pub state: State,
    /// `ct_zone`.
    pub zone: Zone,
    /// `ct_mark`; 0 without a connection.
    pub mark: u32,
    /// `ct_label`; 0 without a connection.
    pub label: u128,
    /// The tuple of the connection's original direction, or of the packet itself when there is no
    /// connection yet (`ct_nw_src`, `ct_tp_dst` and so on). `None` for an invalid packet.
    pub original: Option<Tuple>,
    /// The connection, if there is one. If this packet ends it, the generation is already old.
    pub connection: Option<ConnRef>,
    /// How NAT changes this packet. The caller applies it.
    pub translation: Option<Translation>,
    /// The reason why the packet is [`State::INV`].
    pub invalid: Option<Invalid>,
    /// True when later packets of this connection and direction have the same result, unless they
    /// have one of the TCP flags SYN, FIN and RST. It is valid as long as the connection's
    /// generation does not change.
    pub is_steady: bool,
    /// True when the caller may try to [fuse](crate::Table::fuse) the passes of such packets. Each
    /// direction of a connection proposes it at most a few times a second.
    pub proposes: bool,
    /// The direction of the packet, or of an ICMP error.
    pub(crate) direction: Direction,
}

impl Tracked {
    pub(crate) fn invalid(zone: Zone, reason: Invalid) -> Self {
        Self {
            state: State::TRK | State::INV,
            zone,
            mark: 0,
            label: 0,
            original: None,
            connection: None,
            translation: None,
            invalid: Some(reason),
            is_steady: false,
            proposes: false,
            direction: Direction::Original,
        }
    }

    /// A packet that would begin a connection.
    pub(crate) fn first(zone: Zone, tuple: Tuple) -> Self {
        Self {
            state: State::TRK | State::NEW,
            zone,
            mark: 0,
            label: 0,
            original: Some(tuple),
            connection: None,
            translation: None,
            invalid: None,
            is_steady: false,
            proposes: false,
            direction: Direction::Original,
        }
    }

    /// The direction of the packet.
    pub const fn direction(&self) -> Direction {
        self.direction
    }
}

/// A change of some bits of a mark or label: the bits in `mask` are set to those of `value`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Masked<T> {
    /// The new value.
    pub value: T,
    /// The bits that change.
    pub mask: T,
}

impl Masked<u32> {
    /// The value after the change.
    pub const fn apply(self, old: u32) -> u32 {
        old & !self.mask | self.value & self.mask
    }
}

impl Masked<u128> {
    /// The value after the change.
    pub const fn apply(self, old: u128) -> u128 {
        old & !self.mask | self.value & self.mask
    }
}

/// The options of a commit, like those of `ct(commit, ...)`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Commit {
    /// Sets bits of the mark, of a new or an existing connection.
    pub mark: Option<Masked<u32>>,
    /// Sets bits of the label, of a new or an existing connection.
    pub label: Option<Masked<u128>>,
    /// The NAT of a new connection. An existing connection keeps its own NAT, which is applied to
    /// the packet. With `None`, the packet is not translated.
    pub nat: Option<crate::NatSpec>,
    /// If the packet is in the reply direction, removes the connection and commits a new one in
    /// this direction.
    pub force: bool,
}
