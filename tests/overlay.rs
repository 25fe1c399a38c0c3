//! Real traffic between guests through every tunnel type.

mod common;

use common::{Lab, Setup, traffic};
use testkit::require_root;

#[test]
fn guests_reach_each_other_when_the_daemons_have_started() {
    require_root!();
    for tunnel in ["vxlan", "geneve", "gre", "stt", "vlan", "qinq"] {
        let lab = Lab::new(Setup::new(tunnel));
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        for family in [4, 6] {
            traffic::ping(&a.netns, b.ip(family));
            traffic::tcp(a, b, family, 1 << 20);
            traffic::udp_echo(a, b, family, 3000);
        }
        daemons.into_iter().for_each(common::Daemon::stop);
    }
}
