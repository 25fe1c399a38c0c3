//! The kernel datapath: eBPF programs at the tc hooks (`bpf/` of the repository), and what userspace has to do with them.
//!
//! A frame is read by the program (`bpf/parse.h`), its key is looked up in the tables (`bpf/lookup.h`), and what it misses goes up
//! to userspace, which extracts the key again, translates it, and puts a megaflow into the tables. So there are two readers of
//! frames, and they must agree to the bit:
//!
//! - [`KernelKey`] is the kernel's key, made of a [`flow::FlowKey`].
//! - [`KernelMatch`] is a megaflow in terms of it, or a refusal.
//! - [`FlowTables`] are the megaflows, masks and exact-match caches that the programs look up.
//!
//! What is done with a packet is a [`ActionList`]. A program executes it whole or hands the packet over as it came, to the user datapath
//! that stands behind the programs: together they are the [`KernelDatapath`] (docs/adr/0011).
#![deny(unsafe_code)]

mod abi;
mod action_list;
mod action_list_map;
mod attach_point;
mod attachment;
mod device_slots;
mod endpoint_maps;
mod entries;
mod flow_tables;
mod key;
pub mod lab;
mod layout;
mod load;
mod megaflows;
mod object;
mod pin;
mod ports;
mod previous;
mod provider;
mod purge;
mod state;
mod struct_bytes;
mod sys;

pub use action_list::{ActionList, BpfAction, SetField};
pub use endpoint_maps::sends_super_packets;
pub use flow_tables::{
    ActionListNo, FlowNo, FlowStats, FlowTableSizes, FlowTables, Grace, LookupStats, MapError,
    MaskNo, Retired,
};
pub use key::{KernelKey, KernelMask, KernelMatch, NotHeld};
pub use load::{MapSizes, OLDEST_KERNEL, Unsupported, check};
pub use object::LoadedObject;
pub use pin::{PinError, Pins};
pub use previous::InheritedMatches;
pub use provider::{Adoption, KernelDatapath, StartError};
pub use purge::{Purged, purge};
