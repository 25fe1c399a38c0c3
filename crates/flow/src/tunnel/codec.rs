//! [`TunnelCodec`]: writes and reads the header of a tunnel type.

use super::TunnelDescriptor;
use crate::decap::Decapped;
use crate::{DropReason, TunnelKey, TunnelSpec};

/// The header codec of a tunnel type, and its description.
///
/// A type without end points (tags) has no header here: [`TagLink`](crate::TagLink) is its codec.
pub(crate) trait TunnelCodec {
    /// The description of the tunnel type.
    const DESCRIPTOR: TunnelDescriptor;

    /// Writes the bytes after the outer IP header of a header template: the carrier's header and
    /// the tunnel header, with 0 for each field that differs between packets. `header` has the
    /// length of both.
    fn write_template(_spec: &TunnelSpec, _header: &mut [u8]) {}

    /// Fills in the fields that differ between packets, in a copy of the template. `header` begins
    /// with the tunnel header and has room for the logical ports, if `packet` has them.
    fn fill(_header: &mut [u8], _packet: &PacketFields<'_>) {}

    /// Reads a tunnel header; `bytes` also contains the inner frame.
    ///
    /// # Errors
    /// The drop reason to count.
    fn decap(_bytes: &[u8], _expected: &DecapOptions) -> Result<Decapped, DropReason> {
        Err(DropReason::TunnelProtocol)
    }
}

/// The tunnel header fields that differ between packets to one end point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketFields<'a> {
    pub(crate) key: &'a TunnelKey,
    /// The sequence number, if the end point sends sequence numbers.
    pub(crate) sequence: u32,
    /// The entropy of the inner flow, which UDP and TCP-like headers carry in the source port.
    pub(crate) source_port: u16,
}

/// The context of a received packet, known before its tunnel header is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DecapOptions {
    /// Whether the sender writes a key field, for types where it is optional.
    pub key: bool,
    /// Whether to skip verification of the tunnel header's checksum, for two kinds of packets:
    ///
    /// - GRO has merged several packets. The kernel has verified each checksum, and the remaining
    ///   checksum covers only the first packet.
    /// - An inner checksum is still partial. The packet was never on a wire, and its outer checksum
    ///   becomes correct only when the inner one is completed.
    pub skip_checksum: bool,
}
