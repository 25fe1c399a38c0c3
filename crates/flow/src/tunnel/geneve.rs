//! Geneve (RFC 8926), with OVN's option for logical ports.

use super::codec::{DecapOptions, PacketFields, TunnelCodec};
use super::{
    Carrier, DeviceOffloads, HeaderLen, KernelDatapath, LogicalPortsField, NetworkId, OptionKind,
    TunnelDescriptor, TunnelOption, udp_header,
};
use crate::decap::{Decapped, malformed};
use crate::{DatapathKey, DropReason, LogicalPorts, PortKey, TunnelKey, TunnelSpec};
use wire::tunnel::geneve::{HEADER_LEN, LOGICAL_PORTS_OPTION_LEN, PORT};
use wire::tunnel::{GeneveOptions, GenevePacket, GeneveRepr};
use wire::{EtherType, Vni};

pub(crate) struct Geneve;

impl TunnelCodec for Geneve {
    const DESCRIPTOR: TunnelDescriptor = TunnelDescriptor {
        name: "geneve",
        standard: "RFC 8926",
        carrier: Carrier::Udp,
        default_port: PORT,
        header: HeaderLen {
            logical_ports: LOGICAL_PORTS_OPTION_LEN as u8,
            ..HeaderLen::fixed(HEADER_LEN)
        },
        network_id: NetworkId::VNI_24,
        logical_ports: LogicalPortsField::GeneveOption,
        options: &[
            TunnelOption::new(OptionKind::Port, "udp_port", "udp_port = 6081", "6081"),
            TunnelOption::UDP_CHECKSUM,
            TunnelOption::LOGICAL_PORTS,
            TunnelOption::TTL,
            TunnelOption::DSCP,
        ],
        offloads: DeviceOffloads::UDP,
        kernel_datapath: KernelDatapath::EndPoints,
        has_gro_device: false,
    };

    fn write_template(spec: &TunnelSpec, header: &mut [u8]) {
        let tunnel = udp_header(spec, header);
        let repr = GeneveRepr {
            control: false,
            protocol: EtherType::TEB,
            vni: Vni::default(),
            options: GeneveOptions::default(),
        };
        repr.emit(&mut GenevePacket::new_unchecked(tunnel));
    }

    #[inline]
    fn fill(header: &mut [u8], packet: &PacketFields<'_>) {
        let vni = Vni::low_bits(packet.key.datapath.0);
        match packet.key.ports {
            None => GenevePacket::new_unchecked(&mut header[..HEADER_LEN]).set_vni(vni),
            Some(ports) => {
                let header = &mut header[..HEADER_LEN + LOGICAL_PORTS_OPTION_LEN];
                let mut geneve = GenevePacket::new_unchecked(header);
                geneve.set_vni(vni);
                geneve.set_logical_ports_option(ports.into());
            }
        }
    }

    /// Drops are [`DropReason::GeneveCriticalOption`] for a critical option that weft does not
    /// know, [`DropReason::GeneveControl`] for control packets, [`DropReason::TunnelProtocol`]
    /// unless the payload is Ethernet, [`DropReason::UnknownLogicalPort`] for egress port 0, and
    /// [`DropReason::MalformedTunnel`] or [`DropReason::Malformed`] when header, options or frame
    /// are cut short or inconsistent.
    #[inline]
    fn decap(bytes: &[u8], _: &DecapOptions) -> Result<Decapped, DropReason> {
        let packet = GenevePacket::new_checked(bytes).map_err(malformed)?;
        let repr = GeneveRepr::parse(&packet).map_err(malformed)?;
        if repr.control {
            return Err(DropReason::GeneveControl);
        }
        if repr.protocol != EtherType::TEB {
            return Err(DropReason::TunnelProtocol);
        }
        let ports = match repr.options.logical_ports() {
            None => None,
            Some(ports) => Some(LogicalPorts {
                ingress: PortKey::new(ports.ingress),
                egress: PortKey::new(ports.egress).ok_or(DropReason::UnknownLogicalPort)?,
            }),
        };
        let key = TunnelKey { datapath: DatapathKey(repr.vni.value()), ports };
        Decapped::new(key, packet.header_len(), bytes)
    }
}
