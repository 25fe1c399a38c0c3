//! The kernel datapath: eBPF programs at the tc hooks (`bpf/` of the repository), and what userspace has to do with them.
//!
//! A frame is read by the program (`bpf/parse.h`), its key is looked up in the tables (`bpf/lookup.h`), and what it misses goes up
//! to userspace, which extracts the key again, translates it, and puts a megaflow into the tables. So there are two readers of
//! frames, and they must agree to the bit:
//!
//! - [`KernelKey`] is the kernel's key, made of a [`flow::FlowKey`].
//! - [`KernelMatch`] is a megaflow in terms of it, or a refusal.
//! - [`Tables`] are the megaflows, masks and exact-match caches that the programs look up.
//!
//! What is done with a packet is a [`List`]. A program executes it whole or hands the packet over as it came, to the user datapath
//! that stands behind the programs: together they are the [`KernelDatapath`] (docs/adr/0011).
#![deny(unsafe_code)]

mod adopt;
mod attach;
mod entries;
mod flows;
mod front;
mod key;
pub mod lab;
mod layout;
mod list;
mod lists;
mod load;
mod pieces;
mod pin;
mod place;
mod ports;
mod provider;
mod purge;
mod reach;
mod record;
mod slots;
mod sys;
mod tables;

pub use adopt::Inherited;
pub use key::{KernelKey, KernelMask, KernelMatch, NotHeld};
pub use list::{List, SetField, Step};
pub use load::{OLDEST_KERNEL, Room, Unsupported, check};
pub use pieces::Pieces;
pub use pin::{PinError, Pins};
pub use provider::{KernelDatapath, StartError, TakenOver};
pub use purge::{Purged, purge};
pub use reach::sends_super_packets;
pub use tables::{
    FlowNo, Grace, ListNo, Lookups, MaskNo, Retired, Served, Sizes, TableError, Tables,
};
