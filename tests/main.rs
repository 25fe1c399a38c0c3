//! The end-to-end tests: real daemons, guests and peers in network namespaces.
//!
//! They are modules of one binary, which is linked once. Tests run in parallel, so each test
//! creates namespaces with names of its own.

mod common;
mod peers;

mod book;
mod bridge;
mod check;
mod commands;
mod debian;
mod diff;
mod dissect;
mod doctor;
mod established;
mod forged_icmp;
mod kernel_vxlan;
mod links;
mod memory;
mod metrics;
mod migration;
mod narrow_path;
mod overlay;
mod ovn;
mod ovs;
mod privileges;
mod recovery;
mod refusals;
mod reject;
mod restart;
mod scapy;
mod service;
mod services;
mod stateful;
mod super_packets;
mod trace;
mod translated;
mod vm;
