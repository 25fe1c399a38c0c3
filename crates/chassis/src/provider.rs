//! [`ProviderBridge`]: a bridge other than the integration bridge, which platforms create to reach
//! a physical network.

use crate::tables::{Interface, Port, Text};
use flow::{DatapathKey, PortNo};
use pipeline::{NativeVlan, PortVlans, VlanSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The TPID of the tags that ports of mode `dot1q-tunnel` add, as in Open vSwitch.
const SERVICE_TPID: u16 = 0x88a8;
const MAX_VLAN: u16 = 4095;

/// A learning switch with devices and patch ports. Ports to logical switches are not among them.
#[derive(Clone, PartialEq, Debug)]
pub struct ProviderBridge {
    /// Its key in the program.
    pub key: DatapathKey,
    /// Its devices, by name.
    pub devices: BTreeMap<Text, (PortNo, PortVlans)>,
    /// Its patch ports, by name, with the other ends.
    pub patches: BTreeMap<Text, (Text, PortVlans)>,
}

impl ProviderBridge {
    /// A bridge without ports.
    pub fn new(key: DatapathKey) -> Self {
        Self { key, devices: BTreeMap::new(), patches: BTreeMap::new() }
    }

    /// Adds a device or a patch port.
    pub fn add(&mut self, row: &Interface, number: PortNo, vlans: PortVlans, is_device: bool) {
        let name = row.name.clone();
        if is_device {
            self.devices.insert(name, (number, vlans));
        } else if let Some(peer) = row.options.get("peer") {
            self.patches.insert(name, (peer.clone(), vlans));
        }
    }
}

/// The VLANs of a port of a provider bridge, from the columns `vlan_mode`, `tag` and `trunks`.
///
/// # Errors
/// A mode that weft does not support.
pub fn port_vlans(row: &Port) -> Result<PortVlans, String> {
    let number = |vlan: i64| u16::try_from(vlan).ok().filter(|vlan| *vlan <= MAX_VLAN);
    let tag = row.tag.and_then(number);
    let trunks: BTreeSet<u16> = row.trunks.iter().copied().filter_map(number).collect();
    let vlans = if trunks.is_empty() { VlanSet::All } else { VlanSet::Only(Arc::new(trunks)) };
    let default = if tag.is_some() { "access" } else { "trunk" };
    let vlan = tag.unwrap_or(0);
    match row.vlan_mode.as_deref().unwrap_or(default) {
        "access" => Ok(PortVlans::Access(vlan)),
        "trunk" => Ok(PortVlans::Trunk { vlans, native: None }),
        mode @ ("native-tagged" | "native-untagged") => {
            let native = NativeVlan { vlan, is_tagged: mode == "native-tagged" };
            Ok(PortVlans::Trunk { vlans, native: Some(native) })
        }
        "dot1q-tunnel" if row.cvlans.is_empty() => {
            Ok(PortVlans::Tunnel { vlan, tpid: SERVICE_TPID })
        }
        "dot1q-tunnel" => Err("weft does not filter inner VLANs: clear cvlans".to_owned()),
        mode => Err(format!("weft has no vlan_mode {mode}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(mode: Option<&str>, tag: Option<i64>, trunks: &[i64]) -> Port {
        Port {
            name: "p".into(),
            interfaces: BTreeSet::new(),
            vlan_mode: mode.map(Text::from),
            tag,
            trunks: trunks.iter().copied().collect(),
            cvlans: BTreeSet::new(),
            external_ids: BTreeMap::new(),
        }
    }

    #[test]
    fn vlans_of_a_port_follow_from_mode_tag_and_trunks() {
        let only = |vlans: &[u16]| VlanSet::Only(Arc::new(vlans.iter().copied().collect()));
        let trunk = |vlans, native| PortVlans::Trunk { vlans, native };
        let native = |vlan, is_tagged| Some(NativeVlan { vlan, is_tagged });
        for (mode, tag, trunks, expected) in [
            (None, None, &[][..], trunk(VlanSet::All, None)),
            (None, Some(7), &[], PortVlans::Access(7)),
            // Open vSwitch ignores the trunks of a port with a tag and without a mode.
            (None, Some(7), &[8], PortVlans::Access(7)),
            (None, None, &[8, 9], trunk(only(&[8, 9]), None)),
            (Some("access"), None, &[], PortVlans::Access(0)),
            (Some("trunk"), Some(7), &[8], trunk(only(&[8]), None)),
            (Some("native-tagged"), Some(7), &[], trunk(VlanSet::All, native(7, true))),
            (Some("native-untagged"), None, &[8], trunk(only(&[8]), native(0, false))),
            (Some("dot1q-tunnel"), Some(7), &[], PortVlans::Tunnel { vlan: 7, tpid: 0x88a8 }),
        ] {
            let row = port(mode, tag, trunks);
            assert_eq!(port_vlans(&row), Ok(expected), "{mode:?} {tag:?} {trunks:?}");
        }
        let cvlans = Port { cvlans: [5].into(), ..port(Some("dot1q-tunnel"), Some(7), &[]) };
        assert!(port_vlans(&cvlans).unwrap_err().contains("cvlans"));
        assert!(port_vlans(&port(Some("odd"), None, &[])).unwrap_err().contains("odd"));
    }
}
