//! The packet I/O half of `netdev` against the real kernel, in namespaces of its own.

mod frames;
mod packet_socket;
mod tap;
mod udp;
