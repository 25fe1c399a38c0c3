//! The end-to-end tests: daemons, guests and peers (other implementations) in network namespaces.
//!
//! The tests are modules of one binary, so that only one binary has to be linked. They run in
//! parallel, so each test creates namespaces with unique names.

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
mod upcall_budget;
mod vm;
