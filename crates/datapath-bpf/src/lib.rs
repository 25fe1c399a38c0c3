//! The kernel datapath: eBPF programs at the tc hooks, and the part of userspace that loads, fills
//! and maintains them. The programs are in `bpf/` of the repository.
//!
//! A program parses a frame (`bpf/parse.h`) and looks up its key in the maps (`bpf/lookup.h`). On a
//! miss it punts the frame to userspace. Userspace extracts the key again, translates it, and adds
//! a megaflow to the maps. So two implementations extract keys, and they must agree in every bit:
//!
//! - [`KernelKey`] is the programs' key, made from a [`flow::FlowKey`].
//! - [`KernelMatch`] is a megaflow's key and mask in that form.
//! - [`FlowTables`] are the maps of megaflows and masks, and the exact-match caches.
//!
//! The actions of a megaflow become an [`ActionList`]. A program either executes all of it, or
//! punts the packet unchanged to the user datapath behind it. Programs and user datapath together
//! are the [`KernelDatapath`] (docs/adr/0011).
#![deny(unsafe_code)]

mod abi;
mod action_list;
mod action_list_map;
mod attach_point;
mod attachment;
mod device_slots;
mod endpoint_entries;
mod endpoint_maps;
mod entries;
mod flow_tables;
mod key;
pub mod lab;
mod layout;
mod load;
mod local_tunnels;
mod map_error;
mod map_use;
mod megaflows;
mod miss_pauses;
mod object;
mod pin;
mod port_masks;
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
    ActionListNo, FlowNo, FlowStats, FlowTableSizes, FlowTables, GracePeriod, LookupStats, MaskNo,
    RetiredEntries,
};
pub use key::{FieldNotInKey, KernelKey, KernelMask, KernelMatch};
pub use load::{MapSizes, OLDEST_KERNEL, Unsupported, check, missing_capabilities};
pub use map_error::MapError;
pub use object::LoadedObject;
pub use pin::{PinError, Pins};
pub use previous::InheritedMatches;
pub use provider::{Adoption, KernelDatapath, PreparedKernelDatapath, StartError};
pub use purge::{PurgeResult, purge};
