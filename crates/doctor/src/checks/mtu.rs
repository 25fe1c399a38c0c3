//! Checks that guests' packets fit at every point between guest and remote host.

use crate::facts::{MtuPoint, MtuPointKind, SwitchMtu};
use crate::finding::{Finding, Fix, Level};

/// The smallest underlay MTU with which guests can use [`JUMBO_GUEST`] in any tunnel type.
pub const JUMBO: u32 = 9_000;
/// The recommended guest MTU on such an underlay: 9,000 minus the largest overhead, rounded down.
pub const JUMBO_GUEST: u32 = 8_900;

/// The largest guest MTU that fits an underlay MTU, or [`JUMBO_GUEST`] on a jumbo underlay.
pub const fn guest_mtu(underlay: u32, overhead: u32) -> u32 {
    match underlay.saturating_sub(overhead) {
        fits if underlay >= JUMBO && fits >= JUMBO_GUEST => JUMBO_GUEST,
        fits => fits,
    }
}

/// All findings about the MTU of a logical switch.
pub fn findings(switch: &SwitchMtu) -> Vec<Finding> {
    let mut findings: Vec<_> =
        switch.places.iter().filter_map(|place| check_mtu_point(switch, place)).collect();
    let SwitchMtu { guest, overhead, tunnel, .. } = switch;
    if findings.is_empty() {
        let seen = format!("guests {guest} + {tunnel} {overhead} = {} bytes", guest + overhead);
        let why = "guests' packets fit at every point on this host";
        findings.push(Finding::pass("mtu", &switch.switch, seen, why));
    }
    findings.extend(recommendation(switch));
    findings
}

fn check_mtu_point(switch: &SwitchMtu, place: &MtuPoint) -> Option<Finding> {
    let MtuPoint { kind, name, mtu, needed, .. } = place;
    let in_netns = place.netns.as_ref().map_or(String::new(), |netns| format!("-n {netns} "));
    let set = Fix::Command(format!("ip {in_netns}link set dev {name} mtu {needed}"));
    let (check, what, why) = match kind {
        MtuPointKind::Guest if mtu > needed => (
            "mtu_guest",
            "at most",
            "longer packets do not fit the tunnel: they are fragmented, refused or lost",
        ),
        MtuPointKind::Guest if mtu < needed => {
            let seen = format!("MTU {mtu} of {name}, {needed} would fit");
            let why = "guests send more and shorter packets than the tunnel could carry";
            let finding = Finding::pass("mtu_guest", &switch.switch, seen, why);
            return Some(finding.worse(Level::Warn, set));
        }
        _ if mtu >= needed => return None,
        MtuPointKind::Guest => return None,
        MtuPointKind::Vif => {
            ("mtu_vif", "at least", "longer packets are lost between weft and the guest")
        }
        MtuPointKind::Bridge => {
            ("mtu_bridge", "at least", "a bridge drops longer packets without an ICMP error")
        }
        MtuPointKind::Uplink => {
            ("mtu_uplink", "at least", "encapsulated packets of guests do not fit the uplink")
        }
        MtuPointKind::Path => (
            "mtu_path",
            "at least",
            "encapsulated packets of guests do not fit the path to that host",
        ),
    };
    let fix = match kind {
        MtuPointKind::Path => Fix::Command(format!(
            "ip route get {name}: raise the MTU of that route, or set underlay_mtu = {mtu} in \
             network.toml on all hosts"
        )),
        _ => set,
    };
    let seen = format!("MTU {mtu} of {name}, needed {what} {needed}");
    Some(Finding::pass(check, &switch.switch, seen, why).worse(Level::Fail, fix))
}

/// Recommends jumbo frames for guests if the underlay carries jumbo frames.
fn recommendation(switch: &SwitchMtu) -> Option<Finding> {
    let uplink = switch.uplink?;
    let best = guest_mtu(uplink, switch.overhead.into());
    if uplink < JUMBO || u32::from(switch.guest) >= best {
        return None;
    }
    let seen = format!("guests {}, underlay {uplink}", switch.guest);
    let why = "jumbo packets carry six times the payload for each header and each lookup";
    let fix = format!(
        "set underlay_mtu = {JUMBO} in network.toml, and mtu = {best} for this switch, on all \
         hosts; then: weft reload"
    );
    let finding = Finding::pass("mtu_recommended", &switch.switch, seen, why);
    Some(finding.worse(Level::Warn, Fix::Command(fix)))
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
        assert_eq!(guest_mtu(9000, 200), 8800, "never more than what fits");
        assert_eq!(guest_mtu(0, 50), 0);
    }
}
