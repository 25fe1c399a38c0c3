//! Two tags on the uplink (IEEE 802.1ad). [`TagLink`](crate::TagLink) reads and writes them.

use super::codec::TunnelCodec;
use super::{
    Carrier, DeviceOffloads, HeaderLen, KernelDatapath, LogicalPortsField, NetworkId, OptionKind,
    TunnelDescriptor, TunnelOption,
};
use wire::vlan::TAG_LEN;

pub(crate) struct QinQ;

impl TunnelCodec for QinQ {
    const DESCRIPTOR: TunnelDescriptor = TunnelDescriptor {
        name: "qinq",
        standard: "IEEE 802.1ad",
        carrier: Carrier::Tags,
        default_port: 0,
        header: HeaderLen::fixed(2 * TAG_LEN),
        network_id: NetworkId::VlanPair,
        logical_ports: LogicalPortsField::Absent,
        options: &[TunnelOption::new(
            OptionKind::ServiceTpid,
            "s_tpid",
            "s_tpid = 0x88a8",
            "0x88a8",
        )],
        offloads: DeviceOffloads::TAGS,
        kernel_datapath: KernelDatapath::Tags,
        has_gro_device: false,
    };
}
