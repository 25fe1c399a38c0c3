//! Packet I/O: TAP, packet sockets, UDP and raw IP sockets.

mod filter;
mod frames;
mod icmp;
mod multicast;
mod packet_socket;
mod raw_ip;
mod stt_sink;
mod tap;
mod udp;
