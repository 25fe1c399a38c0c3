//! VXLAN (RFC 7348).

use super::codec::{DecapOptions, PacketFields, TunnelCodec};
use super::{
    Carrier, DeviceOffloads, HeaderLen, KernelDatapath, LogicalPortsField, NetworkId, OptionKind,
    TunnelDescriptor, TunnelOption, udp_header,
};
use crate::decap::{Decapped, malformed};
use crate::{DatapathKey, DropReason, TunnelKey, TunnelSpec};
use wire::Vni;
use wire::tunnel::vxlan::{HEADER_LEN, PORT};
use wire::tunnel::{VxlanPacket, VxlanRepr};

pub(crate) struct Vxlan;

impl TunnelCodec for Vxlan {
    const DESCRIPTOR: TunnelDescriptor = TunnelDescriptor {
        name: "vxlan",
        standard: "RFC 7348",
        carrier: Carrier::Udp,
        default_port: PORT,
        header: HeaderLen::fixed(HEADER_LEN),
        network_id: NetworkId::VNI_24,
        logical_ports: LogicalPortsField::Absent,
        options: &[
            TunnelOption::new(OptionKind::Port, "udp_port", "udp_port = 4789", "4789"),
            TunnelOption::UDP_CHECKSUM,
            TunnelOption::TTL,
            TunnelOption::DSCP,
            TunnelOption::new(OptionKind::Group, "group", "group = \"239.1.1.1\"", "none"),
            TunnelOption::new(OptionKind::GroupTtl, "group_ttl", "group_ttl = 1", "1"),
        ],
        offloads: DeviceOffloads::UDP,
        kernel_datapath: KernelDatapath::EndPoints,
        has_gro_device: true,
    };

    fn write_template(spec: &TunnelSpec, header: &mut [u8]) {
        let tunnel = udp_header(spec, header);
        VxlanRepr { vni: Vni::default() }.emit(&mut VxlanPacket::new_unchecked(tunnel));
    }

    #[inline]
    fn fill(header: &mut [u8], packet: &PacketFields<'_>) {
        let vni = Vni::low_bits(packet.key.datapath.0);
        VxlanPacket::new_unchecked(&mut header[..HEADER_LEN]).set_vni(vni);
    }

    /// Drops are [`DropReason::VxlanNoVni`] without the I flag, and [`DropReason::MalformedTunnel`]
    /// or [`DropReason::Malformed`] when header or frame are cut short.
    #[inline]
    fn decap(bytes: &[u8], _: &DecapOptions) -> Result<Decapped, DropReason> {
        let packet = VxlanPacket::new_checked(bytes).map_err(malformed)?;
        let repr = VxlanRepr::parse(&packet).map_err(|_| DropReason::VxlanNoVni)?;
        let key = TunnelKey { datapath: DatapathKey(repr.vni.value()), ports: None };
        Decapped::new(key, repr.header_len(), bytes)
    }
}
