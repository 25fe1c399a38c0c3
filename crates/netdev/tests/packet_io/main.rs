//! The packet I/O half of `netdev` against the real kernel, in namespaces of its own.

mod filter;
mod frames;
mod icmp;
mod multicast;
mod packet_socket;
mod raw_ip;
mod stt_sink;
mod tap;
mod udp;
