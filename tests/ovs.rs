//! Tests interoperability with the userspace datapath of Open vSwitch on the other host.

use crate::common::{Datapath, Lab, Setup};
use crate::peers::open_vswitch::{Counted, OpenVswitch, Tunnel};
use crate::peers::{MTU, guests_talk, nothing_was_refused, tried};
use testkit::{require_program, require_root};

/// Checks traffic in both directions. All packets that Open vSwitch decapsulates must have the
/// correct key and logical ports.
fn guests_talk_with(setup: Setup, tunnel: Tunnel<'_>, what: &str) {
    let lab = Lab::new(setup.mtu(MTU));
    let peer = OpenVswitch::start(&lab, tunnel);
    let daemon = lab.start(0);
    guests_talk(&lab);
    nothing_was_refused(&daemon);
    let [unicast, flood, unexpected] =
        peer.packets([Counted::Unicast, Counted::Flood, Counted::Unexpected]);
    // A stream of this length needs thousands of segments on the wire.
    assert!(unicast > 1000, "only {unicast} packets for the guest had the right keys");
    assert!(flood > 0, "ARP requests and neighbour solicitations had other keys");
    assert_eq!(unexpected, 0, "packets with other keys arrived");
    tried(&daemon, "Open vSwitch", what);
    daemon.stop();
}

/// Skips the calling test unless Open vSwitch is installed.
macro_rules! require_open_vswitch {
    () => {
        require_root!();
        require_program!("ovs-vswitchd", "openvswitch-switch");
    };
}

const PLAIN: Tunnel<'static> =
    Tunnel { kind: "vxlan", options: &[], logical_ports: false, datapath: Datapath::User };
const CHECKSUM: &[&str] = &["options:csum=true"];

#[test]
fn guests_talk_when_ovs_maps_the_geneve_option() {
    require_open_vswitch!();
    for family in [4, 6] {
        guests_talk_with(
            Setup::new("geneve").family(family),
            Tunnel { kind: "geneve", options: CHECKSUM, logical_ports: true, ..PLAIN },
            &format!("Geneve over IPv{family} with the logical-port option, set and matched"),
        );
    }
}

#[test]
fn guests_talk_when_ovs_speaks_geneve_without_options() {
    require_open_vswitch!();
    guests_talk_with(
        Setup::new("geneve").options("logical_ports = false\nchecksum = false"),
        Tunnel { kind: "geneve", ..PLAIN },
        "Geneve without options and checksums",
    );
}

#[test]
fn guests_talk_when_ovs_speaks_gre_with_a_key() {
    require_open_vswitch!();
    // Checksum and sequence number are not combined: Open vSwitch 3.1 computes the checksum before
    // it fills in the sequence number.
    for (options, tunnel, what) in [
        ("", &[][..], ""),
        ("checksum = true", CHECKSUM, " and checksums"),
        ("sequence = true", &["options:seq=true"], " and sequence numbers"),
    ] {
        guests_talk_with(
            Setup::new("gre").options(options),
            Tunnel { kind: "gre", options: tunnel, ..PLAIN },
            &format!("GRE with a key{what}"),
        );
    }
}

#[test]
fn guests_talk_when_ovs_speaks_vxlan() {
    require_open_vswitch!();
    for family in [4, 6] {
        guests_talk_with(
            Setup::new("vxlan").family(family),
            Tunnel { options: CHECKSUM, ..PLAIN },
            &format!("VXLAN over IPv{family}"),
        );
    }
}
