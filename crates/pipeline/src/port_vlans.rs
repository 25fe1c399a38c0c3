//! [`PortVlans`]: which VLANs a port of a provider bridge carries, and with which tags.

use std::collections::BTreeSet;
use std::sync::Arc;

/// The VLANs of a bridge port, as `vlan_mode`, `tag` and `trunks` of Open vSwitch's table Port
/// describe them. Frames without a tag, or with a priority tag, belong to VLAN 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortVlans {
    /// One VLAN, without tags. Tagged frames are refused.
    Access(u16),
    /// Several VLANs, with tags.
    Trunk {
        /// The VLANs.
        vlans: VlanSet,
        /// The VLAN of untagged frames, instead of 0.
        native: Option<NativeVlan>,
    },
    /// One VLAN. Its tag is pushed in front of the tags of received frames, and popped from frames
    /// that are sent.
    Tunnel {
        /// The VLAN.
        vlan: u16,
        /// The TPID of its tag: 0x8100 or 0x88a8.
        tpid: u16,
    },
}

/// The VLAN of untagged frames of a trunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NativeVlan {
    /// The VLAN.
    pub vlan: u16,
    /// True if its frames are sent with a tag.
    pub is_tagged: bool,
}

/// VLANs of a trunk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum VlanSet {
    /// All.
    #[default]
    All,
    /// These.
    Only(Arc<BTreeSet<u16>>),
}

impl VlanSet {
    fn contains(&self, vlan: u16) -> bool {
        match self {
            Self::All => true,
            Self::Only(vlans) => vlans.contains(&vlan),
        }
    }
}

impl Default for PortVlans {
    fn default() -> Self {
        Self::Trunk { vlans: VlanSet::All, native: None }
    }
}

impl PortVlans {
    /// The VLAN of a received frame whose outer tag has this VLAN ID; 0 for an untagged frame.
    /// `None` if the port refuses the frame.
    pub(crate) fn of_received(&self, vid: u16) -> Option<u16> {
        match self {
            Self::Access(vlan) => (vid == 0).then_some(*vlan),
            Self::Trunk { native: Some(native), .. } if vid == 0 => Some(native.vlan),
            Self::Trunk { .. } => self.carries(vid).then_some(vid),
            Self::Tunnel { vlan, .. } => Some(*vlan),
        }
    }

    /// True if frames of the VLAN are sent by the port.
    pub(crate) fn carries(&self, vlan: u16) -> bool {
        match self {
            Self::Access(own) | Self::Tunnel { vlan: own, .. } => vlan == *own,
            // A port always carries its native VLAN.
            Self::Trunk { native: Some(native), .. } if vlan == native.vlan => true,
            Self::Trunk { vlans, .. } => vlans.contains(vlan),
        }
    }

    /// True if frames of this VLAN, which the port carries, are sent with its tag.
    pub(crate) fn tags(&self, vlan: u16) -> bool {
        match self {
            Self::Access(_) | Self::Tunnel { .. } => false,
            Self::Trunk { native: Some(native), .. } if vlan == native.vlan => {
                native.is_tagged && vlan != 0
            }
            Self::Trunk { .. } => vlan != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(vlans: &[u16]) -> VlanSet {
        VlanSet::Only(Arc::new(vlans.iter().copied().collect()))
    }

    #[test]
    fn vlan_of_a_frame_follows_from_the_mode_of_the_port() {
        let native = |is_tagged| Some(NativeVlan { vlan: 7, is_tagged });
        // The VLANs of frames with the VLAN IDs 0, 7 and 8; then whether frames of these VLANs are
        // sent, and with a tag.
        let [no, untagged, tagged] = [None, Some(false), Some(true)];
        for (port, received, sent) in [
            (PortVlans::Access(7), [Some(7), None, None], [no, untagged, no]),
            (PortVlans::Access(0), [Some(0), None, None], [untagged, no, no]),
            (PortVlans::default(), [Some(0), Some(7), Some(8)], [untagged, tagged, tagged]),
            (
                PortVlans::Trunk { vlans: only(&[8]), native: None },
                [None, None, Some(8)],
                [no, no, tagged],
            ),
            (
                PortVlans::Trunk { vlans: only(&[8]), native: native(false) },
                [Some(7), Some(7), Some(8)],
                [no, untagged, tagged],
            ),
            (
                PortVlans::Trunk { vlans: VlanSet::All, native: native(true) },
                [Some(7), Some(7), Some(8)],
                [untagged, tagged, tagged],
            ),
            (
                PortVlans::Tunnel { vlan: 7, tpid: 0x88a8 },
                [Some(7), Some(7), Some(7)],
                [no, untagged, no],
            ),
        ] {
            assert_eq!([0, 7, 8].map(|vid| port.of_received(vid)), received, "{port:?}");
            let sends = |vlan| port.carries(vlan).then(|| port.tags(vlan));
            assert_eq!([0, 7, 8].map(sends), sent, "{port:?}");
        }
    }
}
