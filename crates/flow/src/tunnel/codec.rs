//! [`TunnelCodec`]: what writes and reads the header of a tunnel type.

use super::TunnelDescriptor;
use crate::decap::Decapped;
use crate::{DropReason, TunnelKey, TunnelSpec};

/// The header codec of a tunnel type, and its description.
///
/// A type without end points (tags) has no header here: [`TagLink`](crate::TagLink) is its codec.
pub(crate) trait TunnelCodec {
    /// Everything that is the same for all end points of the type.
    const DESCRIPTOR: TunnelDescriptor;

    /// Writes what follows the outer IP header of a header template: the carrier's header and the
    /// tunnel header, with 0 for each field that differs between packets. `header` is as long as
    /// both.
    fn write_template(_spec: &TunnelSpec, _header: &mut [u8]) {}

    /// Writes into a copied template what differs between packets. `header` begins with the
    /// tunnel header and has room for the logical ports, if `packet` has them.
    fn fill(_header: &mut [u8], _packet: &PacketFields<'_>) {}

    /// Reads a tunnel header with what follows it.
    ///
    /// # Errors
    /// The reason under which the packet is counted as dropped.
    fn decap(_bytes: &[u8], _expected: &DecapOptions) -> Result<Decapped, DropReason> {
        Err(DropReason::TunnelProtocol)
    }
}

/// What differs between the tunnel headers of packets to one end point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketFields<'a> {
    pub(crate) key: &'a TunnelKey,
    /// The sequence number, where the end point has them.
    pub(crate) sequence: u32,
    /// The entropy of the inner flow, as UDP and TCP-shaped headers carry it in the source port.
    pub(crate) source_port: u16,
}

/// What a receiver knows of a packet before it reads the tunnel header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DecapOptions {
    /// Whether the sender writes a key field, where that is optional.
    pub key: bool,
    /// Whether to leave a checksum of the tunnel header unverified.
    ///
    /// Either the kernel has merged several packets into this one: it has verified the checksum of
    /// each before, and the one that is left covers the first alone. Or a checksum inside is still
    /// owed: then the packet has been on no wire, and its sum will be right only when that checksum
    /// is made.
    pub skip_checksum: bool,
}
