//! Checks whether the path to another host carries packets of the length that the network file
//! requires.

use crate::checks::mtu;
use crate::facts::SwitchMtu;
use crate::finding::{Finding, Fix, Level};
use crate::path::{PathDirection, PathFacts, PmtuReport};

/// All findings about a path.
pub fn findings(path: &PathFacts) -> Vec<Finding> {
    let PathFacts { host, tunnel, local, remote, .. } = path;
    let why = "without an answer no packet of a guest arrives either";
    let Some(tries) = path.tries else {
        let seen = format!("no answer from {remote} inside {tunnel}");
        let fix = format!(
            "run weft doctor and weft show on {host}; let the network between pass {tunnel} from \
             {local} to {remote} and back"
        );
        let finding = Finding::pass("path", host, seen, why);
        return vec![finding.worse(Level::Fail, Fix::Command(fix))];
    };
    let rtt = path.rtt_us.unwrap_or(0);
    let seen = format!("{remote} answers inside {tunnel} after {rtt} µs (probe {tries})");
    let mut findings = vec![Finding::pass("path", host, seen, why)];
    let forward = format!("toward {host}");
    let back = format!("from {host}");
    findings.push(of_direction(path, &forward, &path.forward));
    findings.push(of_direction(path, &back, &path.back));
    // The probes have already tested the uplinks and the network between them.
    let of_guests = path.switches.iter().map(|switch| {
        let places = switch.places.iter().filter(|place| place.is_of_a_guest()).cloned();
        SwitchMtu { places: places.collect(), uplink: None, ..switch.clone() }
    });
    findings.extend(of_guests.flat_map(|switch| mtu::findings(&switch)));
    if path.remote_misfit {
        let why = "packets of the guests there are lost, or too long for the tunnel";
        let seen = "a guest interface there has an MTU that does not fit its switch";
        let fix = format!("on {host}: weft doctor --host {host} network.toml");
        let finding = Finding::pass("mtu_remote", host, seen, why);
        findings.push(finding.worse(Level::Fail, Fix::Command(fix)));
    }
    findings
}

/// An uplink whose MTU is too small for a path.
struct NarrowUplink {
    who: String,
    fix: String,
    mtu: u32,
}

/// The uplink that limits packets to `mtu` bytes. An uplink with a larger MTU than `mtu` is not the
/// cause.
fn narrow_uplink(path: &PathFacts, mtu: u16) -> Option<NarrowUplink> {
    let PathFacts { host, needed, uplink, remote_uplink, .. } = path;
    let is_it = |found: u32| found < u32::from(*needed) && found <= u32::from(mtu);
    if let Some((device, mtu)) = uplink.as_ref().filter(|(_, found)| is_it(*found)) {
        let who = format!("this host's uplink {device} has MTU {mtu}");
        return Some(NarrowUplink {
            who,
            fix: format!("ip link set dev {device} mtu {needed}"),
            mtu: *mtu,
        });
    }
    let (device, mtu) = remote_uplink.as_ref().filter(|(_, found)| is_it((*found).into()))?;
    let who = format!("the uplink {device} of {host} has MTU {mtu}");
    let fix = format!("on {host}: ip link set dev {device} mtu {needed}");
    Some(NarrowUplink { who, fix, mtu: (*mtu).into() })
}

fn of_direction(path: &PathFacts, which: &str, direction: &PathDirection) -> Finding {
    let PathFacts { host, needed, overhead, .. } = path;
    let mtu = direction.mtu.unwrap_or(0);
    let why =
        "longer packets of guests are lost while short ones arrive: connections open, then hang";
    let seen = format!("{which}: packets up to {mtu} bytes arrive, {needed} needed");
    let finding = Finding::pass("path_mtu", host, seen, why);
    if mtu >= *needed {
        // STT resegments to the path MTU that a router reported.
        let Some(report) = direction.told.filter(|report| report.mtu < *needed) else {
            return finding;
        };
        let seen = format!(
            "{which}: packets for {mtu} bytes arrive, resegmented to the path MTU {}",
            report.mtu
        );
        return Finding { seen, ..finding };
    }
    let narrow = narrow_uplink(path, mtu);
    // A device may accept slightly more than its MTU.
    let fits = narrow.as_ref().map_or(mtu.into(), |narrow| narrow.mtu);
    let smaller = format!(
        "or set underlay_mtu = {fits} in network.toml on all hosts (guests: at most {})",
        fits.saturating_sub((*overhead).into())
    );
    let (who, fix) = match (narrow, direction.told) {
        (Some(NarrowUplink { who, fix, .. }), _) => {
            (format!("; {who}"), format!("{fix}, {smaller}"))
        }
        (None, Some(PmtuReport { router: Some(router), mtu: reported })) => (
            format!("; {router} reports a next-hop MTU of {reported}"),
            format!("raise the MTU behind {router} to {needed}, {smaller}"),
        ),
        (None, Some(PmtuReport { router: None, mtu: reported })) => (
            format!("; a router reported {reported} within the last ten minutes"),
            format!("raise the MTU on the path to {needed}, {smaller}"),
        ),
        (None, None) => (
            "; no router reports it: an MTU black hole".to_owned(),
            format!(
                "find the hop with the smaller MTU (tracepath -n {}), or let ICMP \"too big\" \
                 pass, {smaller}",
                path.remote
            ),
        ),
    };
    let seen = format!("{}{who}", finding.seen);
    Finding { seen, ..finding }.worse(Level::Fail, Fix::Command(fix))
}
