//! A provider bridge with random VLANs.

use flow::{DatapathKey, PortKey, PortNo};
use pipeline::{
    Datapath, DatapathKind, LogicalPort, NativeVlan, PortLocation, PortRole, PortSecurity,
    PortVlans, Program, VlanSet,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use testkit::random::Random;

/// The key of the provider bridge.
pub const PROVIDER: u32 = 4;

/// A learning switch between three devices and the two switches.
pub fn provider_bridge(random: &mut Random, program: &mut Program) {
    let mut bridge = Datapath::new("provider", DatapathKind::Provider);
    for key in 1..=5u16 {
        let port = PortKey::new(key).unwrap();
        let location = match key {
            4 | 5 => PortLocation::Patch {
                datapath: DatapathKey(u32::from(key) - 3),
                port: PortKey::new(2).unwrap(),
            },
            _ => PortLocation::Local(PortNo(PROVIDER * 10 + u32::from(key))),
        };
        if let PortLocation::Local(device) = location {
            let role = PortRole::Vif { datapath: DatapathKey(PROVIDER), port };
            program.set_port_role(device, role);
        }
        let (name, security) = (format!("provider-{key}"), PortSecurity::default());
        bridge.ports.insert(port, LogicalPort { name, location, security });
        let vlan = random.below(3) as u16;
        let native = NativeVlan { vlan, is_tagged: random.once_in(2) };
        let vlans = match random.below(5) {
            0 => PortVlans::Access(vlan),
            1 => PortVlans::Tunnel { vlan, tpid: random.pick(&[0x8100, 0x88a8]) },
            2 => PortVlans::Trunk { vlans: VlanSet::All, native: Some(native) },
            3 => {
                let vlans = VlanSet::Only(Arc::new(BTreeSet::from([0, vlan])));
                PortVlans::Trunk { vlans, native: None }
            }
            _ => continue,
        };
        bridge.vlans.insert(port, vlans);
    }
    program.set_datapath(DatapathKey(PROVIDER), bridge);
}
