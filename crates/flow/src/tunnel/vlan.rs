//! One 802.1Q tag on the uplink. [`TagLink`](crate::TagLink) reads and writes it.

use super::codec::TunnelCodec;
use super::{
    Carrier, DeviceOffloads, HeaderLen, KernelDatapath, LogicalPortsField, NetworkId,
    TunnelDescriptor,
};
use wire::vlan::TAG_LEN;

pub(crate) struct Vlan;

impl TunnelCodec for Vlan {
    const DESCRIPTOR: TunnelDescriptor = TunnelDescriptor {
        name: "vlan",
        standard: "IEEE 802.1Q",
        carrier: Carrier::Tags,
        default_port: 0,
        header: HeaderLen::fixed(TAG_LEN),
        network_id: NetworkId::Vlan,
        logical_ports: LogicalPortsField::Absent,
        options: &[],
        offloads: DeviceOffloads::TAGS,
        kernel_datapath: KernelDatapath::Tags,
        has_gro_device: false,
    };
}
