//! The tests of the kernel datapath, as one binary: it is linked once, and its tests run in
//! parallel. Each test loads its own programs and creates its own network namespaces, so no test
//! needs a lock.

mod agreement;
mod checksums;
mod collisions;
mod common;
mod conformance;
mod debian;
mod full_tables;
mod headers;
mod instruction_counts;
mod lookup;
mod outer_agreement;
mod port_redirect;
mod programs;
mod punt;
mod punt_queue;
mod unknown_senders;
mod verifier;
mod veth;
