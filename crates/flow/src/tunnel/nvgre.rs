//! NVGRE (RFC 7637): GRE with a key that is a 24-bit VSID and an 8-bit FlowID.
//!
//! The FlowID carries the entropy of the inner flow, for routers that hash the GRE key (RFC 7637
//! section 3.2). It is the low byte of the source port that a UDP tunnel would use, so the
//! configured number of source ports also limits it. Receivers ignore it.
//!
//! NVGRE has the IP protocol and the protocol type of Ethernet over GRE, so packets do not tell the
//! two apart. The `network` crate rejects files in which two hosts would use both.

use super::codec::{DecapOptions, PacketFields, TunnelCodec};
use super::{
    Carrier, DeviceOffloads, HeaderLen, KernelDatapath, LogicalPortsField, NetworkId,
    TunnelDescriptor, TunnelOption,
};
use crate::decap::{Decapped, malformed};
use crate::{DatapathKey, DropReason, TunnelKey, TunnelSpec};
use wire::tunnel::gre::{FIELD_LEN, MIN_HEADER_LEN};
use wire::tunnel::{GrePacket, NvgreRepr};
use wire::{EtherType, Vni};

/// The bits of the key that hold the FlowID.
const FLOW_ID_BITS: u32 = 8;

pub(crate) struct Nvgre;

impl TunnelCodec for Nvgre {
    const DESCRIPTOR: TunnelDescriptor = TunnelDescriptor {
        name: "nvgre",
        standard: "RFC 7637",
        carrier: Carrier::Gre,
        default_port: 0,
        header: HeaderLen::fixed(MIN_HEADER_LEN + FIELD_LEN),
        network_id: NetworkId::Vni {
            max: Vni::MAX - 1,
            rule: "a VSID is 1 to 16777214 (RFC 7637 reserves 16777215)",
        },
        logical_ports: LogicalPortsField::Absent,
        options: &[TunnelOption::TTL, TunnelOption::DSCP],
        offloads: DeviceOffloads::GRE,
        kernel_datapath: KernelDatapath::EndPoints,
        has_gro_device: false,
    };

    fn write_template(_: &TunnelSpec, header: &mut [u8]) {
        let repr = NvgreRepr { vsid: Vni::default(), flow_id: 0 };
        repr.emit(&mut GrePacket::new_unchecked(header));
    }

    #[inline]
    fn fill(header: &mut [u8], packet: &PacketFields<'_>) {
        let flow_id = u32::from(packet.source_port as u8);
        let key = packet.key.datapath.0 << FLOW_ID_BITS | flow_id;
        GrePacket::new_unchecked(header).set_key_and_sequence(key, 0);
    }

    /// Drops are [`DropReason::TunnelProtocol`] unless the payload is Ethernet,
    /// [`DropReason::GreNoKey`] without key, and [`DropReason::MalformedTunnel`] with a checksum or
    /// a sequence number, which NVGRE forbids.
    #[inline]
    fn decap(bytes: &[u8], _: &DecapOptions) -> Result<Decapped, DropReason> {
        let packet = GrePacket::new_checked(bytes).map_err(malformed)?;
        if packet.protocol() != EtherType::TEB {
            return Err(DropReason::TunnelProtocol);
        }
        if packet.key().is_none() {
            return Err(DropReason::GreNoKey);
        }
        let repr = NvgreRepr::parse(&packet).map_err(malformed)?;
        let key = TunnelKey { datapath: DatapathKey(repr.vsid.value()), ports: None };
        Decapped::new(key, repr.header_len(), bytes)
    }
}
