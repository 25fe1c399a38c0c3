//! The kernel datapath: eBPF programs at the tc hooks (`bpf/` of the repository), and what userspace has to do with them.
//!
//! A frame is read by the program (`bpf/parse.h`), its key is looked up in the tables (`bpf/lookup.h`), and what it misses goes up
//! to userspace, which extracts the key again, translates it, and puts a megaflow into the tables. So there are two readers of
//! frames, and they must agree to the bit:
//!
//! - [`KernelKey`] is the kernel's key, made of a [`flow::FlowKey`].
//! - [`KernelMatch`] is a megaflow in terms of it, or a refusal.
//! - [`Tables`] are the megaflows, masks and exact-match caches that the programs look up.
#![deny(unsafe_code)]

mod key;
mod layout;
mod tables;

pub use key::{KernelKey, KernelMask, KernelMatch, NotHeld};
pub use tables::{FlowNo, Lookups, MaskNo, Sizes, TableError, Tables};
