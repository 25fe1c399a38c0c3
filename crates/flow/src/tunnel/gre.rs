//! GRE with Transparent Ethernet Bridging (RFC 2784), key and sequence number (RFC 2890).

use super::codec::{DecapOptions, PacketFields, TunnelCodec};
use super::{
    Carrier, DeviceOffloads, HeaderLen, KernelDatapath, LogicalPortsField, NetworkId, OptionKind,
    TunnelDescriptor, TunnelOption,
};
use crate::decap::{Decapped, malformed};
use crate::{DatapathKey, DropReason, TunnelKey, TunnelSpec};
use wire::EtherType;
use wire::tunnel::gre::{FIELD_LEN, MIN_HEADER_LEN};
use wire::tunnel::{GrePacket, GreRepr};

pub(crate) struct Gre;

impl TunnelCodec for Gre {
    const DESCRIPTOR: TunnelDescriptor = TunnelDescriptor {
        name: "gre",
        standard: "RFC 2784 and 2890",
        carrier: Carrier::Gre,
        default_port: 0,
        header: HeaderLen { optional_field: FIELD_LEN as u8, ..HeaderLen::fixed(MIN_HEADER_LEN) },
        network_id: NetworkId::Vni {
            max: u32::MAX,
            rule: "a GRE key is 1 to 4294967295 (0 means no key)",
        },
        logical_ports: LogicalPortsField::Absent,
        options: &[
            TunnelOption::new(OptionKind::Checksum, "checksum", "checksum = true", "false"),
            TunnelOption::new(OptionKind::Key, "key", "key = true", "true"),
            TunnelOption::new(OptionKind::Sequence, "sequence", "sequence = false", "false"),
            TunnelOption::TTL,
            TunnelOption::DSCP,
        ],
        offloads: DeviceOffloads::GRE,
        kernel_datapath: KernelDatapath::EndPoints,
        has_gro_device: false,
    };

    fn write_template(spec: &TunnelSpec, header: &mut [u8]) {
        let repr = GreRepr {
            protocol: EtherType::TEB,
            checksum: spec.checksum,
            key: spec.key.then_some(0),
            sequence: spec.sequence.then_some(0),
        };
        repr.emit(&mut GrePacket::new_unchecked(header));
    }

    #[inline]
    fn fill(header: &mut [u8], packet: &PacketFields<'_>) {
        let mut gre = GrePacket::new_unchecked(header);
        gre.set_key_and_sequence(packet.key.datapath.0, packet.sequence);
    }

    /// Drops are [`DropReason::GreChecksum`], [`DropReason::GreNoKey`] when a key is missing,
    /// [`DropReason::UnknownDatapath`] for a key where there should be none,
    /// [`DropReason::TunnelProtocol`] unless the payload is Ethernet (Transparent Ethernet
    /// Bridging), and [`DropReason::MalformedTunnel`] or [`DropReason::Malformed`].
    #[inline]
    fn decap(bytes: &[u8], expected: &DecapOptions) -> Result<Decapped, DropReason> {
        let packet = GrePacket::new_checked(bytes).map_err(malformed)?;
        if !expected.skip_checksum && !packet.verify_checksum() {
            return Err(DropReason::GreChecksum);
        }
        if packet.protocol() != EtherType::TEB {
            return Err(DropReason::TunnelProtocol);
        }
        let datapath = match (packet.key(), expected.key) {
            (Some(key), true) => DatapathKey(key),
            (None, false) => DatapathKey(0),
            (None, true) => return Err(DropReason::GreNoKey),
            (Some(_), false) => return Err(DropReason::UnknownDatapath),
        };
        Decapped::new(TunnelKey { datapath, ports: None }, packet.header_len(), bytes)
    }
}
