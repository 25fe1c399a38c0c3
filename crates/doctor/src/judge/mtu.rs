//! Whether packets of guests fit everywhere.

use crate::facts::{Place, PlaceKind, SwitchMtu};
use crate::finding::{Finding, Level, Mend};

/// An underlay with so much has room for guests with [`JUMBO_GUEST`], whatever the tunnel.
pub const JUMBO: u32 = 9_000;
/// What guests are to have on such an underlay: 9,000 less the largest overhead, and a round number.
pub const JUMBO_GUEST: u32 = 8_900;

/// The largest MTU of guests that fits into an underlay, and a round one on a jumbo underlay.
pub const fn guest_mtu(underlay: u32, overhead: u32) -> u32 {
    match underlay.saturating_sub(overhead) {
        fits if underlay >= JUMBO && fits >= JUMBO_GUEST => JUMBO_GUEST,
        fits => fits,
    }
}

/// Everything that is to be said of the MTU of a logical switch.
pub fn findings(switch: &SwitchMtu) -> Vec<Finding> {
    let mut findings: Vec<_> =
        switch.places.iter().filter_map(|place| of_place(switch, place)).collect();
    let SwitchMtu { guest, overhead, tunnel, .. } = switch;
    if findings.is_empty() {
        let seen = format!("guests {guest} + {tunnel} {overhead} = {} bytes", guest + overhead);
        let why = "packets of guests fit everywhere on this host";
        findings.push(Finding::pass("mtu", &switch.switch, seen, why));
    }
    findings.extend(recommendation(switch));
    findings
}

fn of_place(switch: &SwitchMtu, place: &Place) -> Option<Finding> {
    let Place { kind, name, mtu, needed, .. } = place;
    let in_netns = place.netns.as_ref().map_or(String::new(), |netns| format!("-n {netns} "));
    let set = Mend::Command(format!("ip {in_netns}link set dev {name} mtu {needed}"));
    let (check, what, why) = match kind {
        PlaceKind::Guest if mtu > needed => (
            "mtu_guest",
            "at most",
            "longer packets do not fit the tunnel: they are fragmented, refused or lost",
        ),
        PlaceKind::Guest if mtu < needed => {
            let seen = format!("MTU {mtu} of {name}, and {needed} fit");
            let why = "packets are shorter, and so more, than the tunnel would carry";
            let finding = Finding::pass("mtu_guest", &switch.switch, seen, why);
            return Some(finding.worse(Level::Warn, set));
        }
        _ if mtu >= needed => return None,
        PlaceKind::Guest => return None,
        PlaceKind::Vif => {
            ("mtu_vif", "at least", "what is longer is lost between weft and the guest")
        }
        PlaceKind::Bridge => {
            ("mtu_bridge", "at least", "a bridge drops what is longer, and tells nobody")
        }
        PlaceKind::Uplink => {
            ("mtu_uplink", "at least", "packets of guests in their tunnel do not fit the uplink")
        }
        PlaceKind::Path => (
            "mtu_path",
            "at least",
            "packets of guests in their tunnel do not fit the way to that host",
        ),
    };
    let mend = match kind {
        PlaceKind::Path => Mend::Command(format!(
            "ip route get {name}: raise the MTU of that way, or write underlay_mtu = {mtu} in network.toml on all hosts"
        )),
        _ => set,
    };
    let seen = format!("MTU {mtu} of {name}, needed {what} {needed}");
    Some(Finding::pass(check, &switch.switch, seen, why).worse(Level::Fail, mend))
}

/// Guests of an underlay with long packets do better with long packets.
fn recommendation(switch: &SwitchMtu) -> Option<Finding> {
    let uplink = switch.uplink?;
    let best = guest_mtu(uplink, switch.overhead.into());
    if uplink < JUMBO || u32::from(switch.guest) >= best {
        return None;
    }
    let seen = format!("guests {}, underlay {uplink}", switch.guest);
    let why = "long packets carry six times as much for each header and each look-up";
    let mend = format!(
        "underlay_mtu = {JUMBO} in network.toml, and mtu = {best} for this switch, on all hosts; then weft reload"
    );
    let finding = Finding::pass("mtu_recommended", &switch.switch, seen, why);
    Some(finding.worse(Level::Warn, Mend::Command(mend)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_mtu_is_what_fits_or_round_on_jumbo() {
        let table = [(1500, 50, 1450), (1500, 92, 1408), (9000, 50, 8900), (9000, 92, 8900)];
        for (underlay, overhead, guest) in table {
            assert_eq!(guest_mtu(underlay, overhead), guest);
        }
        assert_eq!(guest_mtu(9000, 200), 8800, "it has to fit all the same");
        assert_eq!(guest_mtu(0, 50), 0);
    }
}
