//! Properties of NIC drivers that no kernel interface reports, each with its source.

use flow::{Carrier, TunnelType};

/// Known properties of one driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Driver {
    /// The driver's name in `ethtool -i`.
    pub name: &'static str,
    /// Whether super-packets with two VLAN tags reach the driver unsegmented. The kernel segments
    /// them for drivers that use its default check (`vlan_features_check`). Drivers with
    /// `passthru_features_check` receive all of them unsegmented.
    pub segments_two_tags: Option<bool>,
    /// The carriers of the tunnels whose inner headers receive-side scaling (RSS) hashes.
    pub hashes_inside: &'static [Carrier],
    /// The kernel source file or commit that shows these properties.
    pub source: &'static str,
}

impl Driver {
    /// True when RSS hashes the inner headers of this tunnel.
    pub fn hashes_inside(&self, tunnel: TunnelType) -> bool {
        self.hashes_inside.contains(&tunnel.carrier())
    }
}

const fn driver(name: &'static str, segments_two_tags: bool, source: &'static str) -> Driver {
    Driver { name, segments_two_tags: Some(segments_two_tags), hashes_inside: &[], source }
}

/// Sources are files and commits of the Linux kernel.
pub const KNOWN: &[Driver] = &[
    Driver {
        hashes_inside: &[Carrier::Gre],
        ..driver(
            "mlx5_core",
            false,
            "en_main.c mlx5e_features_check; lib/fs_ttc.c, commit 7b3722fa9ef6 \
             (GRE: 21.3 Gb/s on one queue, 90.5 Gb/s on 8)",
        )
    },
    // These drivers check only the lengths of headers, and two tags are within the limits.
    driver("i40e", true, "i40e_main.c i40e_features_check"),
    driver("iavf", true, "iavf_main.c iavf_features_check"),
    driver("ice", true, "ice_main.c ice_features_check"),
    driver("ixgbe", true, "ixgbe_main.c ixgbe_features_check"),
    driver("ixgbevf", true, "ixgbevf_main.c ixgbevf_features_check"),
    driver("bnxt_en", false, "bnxt.c bnxt_features_check"),
    driver("bnx2x", false, "bnx2x_main.c bnx2x_features_check"),
    driver("amd-xgbe", false, "xgbe-drv.c xgbe_features_check"),
    driver("nfp", false, "nfp_net_common.c nfp_net_features_check"),
    driver("virtio_net", true, "virtio_net.c virtnet_netdev: passthru_features_check"),
    driver("veth", true, "veth.c veth_netdev_ops: passthru_features_check"),
    driver("macvlan", true, "macvlan.c macvlan_netdev_ops: passthru_features_check"),
    driver("bonding", true, "bond_main.c bond_netdev_ops: passthru_features_check"),
    driver("netkit", true, "netkit.c netkit_netdev_ops: passthru_features_check"),
];

/// The entry of the driver `name`.
pub fn find(name: &str) -> Option<&'static Driver> {
    KNOWN.iter().find(|driver| driver.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_source_and_a_name_of_its_own() {
        for driver in KNOWN {
            assert!(driver.source.contains(".c "), "{driver:?}");
            assert_eq!(find(driver.name), Some(driver));
        }
        assert_eq!(find("e1000"), None);
    }
}
