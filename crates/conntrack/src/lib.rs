//! Connection tracking and NAT: the state machines of TCP, UDP, ICMP, ICMPv6 and SCTP, the table of
//! connections, its limits and its expiry.
//!
//! No I/O and no clock: the caller passes packets and the time.
//!
//! # Use
//! A pipeline runs a packet through a zone in two steps, like `ct(...)` of Open vSwitch and the
//! `ct_*` actions of OVN:
//!
//! 1. [`Headers::parse`], then [`Table::track`]: returns `ct_state`, `ct_mark`, `ct_label`, the
//!    tuple of the original direction, and how NAT changes this packet. It never creates a
//!    connection.
//! 2. [`Table::commit`] with that result: creates the connection, chooses its NAT, and sets mark
//!    and label.
//!
//! Either may return a [`Translation`], which the caller applies to the packet.
//!
//! Call [`Table::expire`] every second or so.
//!
//! # Fragments
//! A fragment is [`Invalid::Fragment`]. The caller reassembles the datagram before it is tracked
//! and translated, and cuts it again when it sends it.
//!
//! # Cached decisions
//! [`Tracked::connection`] has a generation. It changes with the first reply, when the protocol's
//! state, mark or label change, and when the connection is removed. A datapath that forwards
//! packets of an established connection without consulting the table must first call
//! [`Table::fuse`]. The table then reports when such a connection changes. TCP windows are not
//! checked meanwhile.
//!
//! # Security
//! Guests choose packets, so the hash functions have a secret [`Seed`]. No input causes a panic.
//! Every operation takes bounded time: no look-up, insertion or removal ever rehashes or scans the
//! table, and NAT tries a bounded number of ports. A full table refuses new connections. It never
//! displaces an existing one.
//!
//! # Reference implementation
//! Connection states and translations are those of Linux's nf_conntrack, because OVN relies on it.
//! A test compares both packet by packet. docs/adr/0019-own-connection-tracking.md lists the
//! exceptions.
#![forbid(unsafe_code)]

mod adaptive_timeouts;
mod commit;
mod config;
mod entry;
mod fusion;
mod headers;
mod index;
mod nat;
mod record;
mod sctp;
mod slab;
mod state;
mod stats;
mod table;
mod tcp;
mod timeouts;
mod timers;
mod tracked;
mod translation;
mod tuple;
mod usage;
mod view;

pub use config::{Config, CtDrop, Limits};
pub use fusion::ConnKey;
pub use headers::Headers;
pub use nat::{NatKind, NatSpec, PortChoice};
pub use record::{Record, RestoreError, Store, checksum};
pub use sctp::SctpState;
pub use state::{Invalid, State};
pub use stats::Stats;
pub use table::{Seed, Table};
pub use tcp::TcpState;
pub use timeouts::{Timeout, Timeouts};
pub use tracked::{Commit, ConnId, ConnRef, Masked, Nat, Tracked};
pub use translation::{QuotedTranslation, Translation};
pub use tuple::{Direction, Tuple, Zone};
pub use view::{Connection, Cursor, LimitUsage, ProtocolState};
