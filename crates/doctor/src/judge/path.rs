//! Whether the way to another host carries what the network file promises.

use crate::facts::SwitchMtu;
use crate::finding::{Finding, Level, Mend};
use crate::judge::mtu;
use crate::path::{PathFacts, Told, Way};

/// Everything that is to be said of a way.
pub fn findings(path: &PathFacts) -> Vec<Finding> {
    let PathFacts { host, tunnel, local, remote, .. } = path;
    let why = "without an answer nothing that guests send arrives either";
    let Some(tries) = path.tries else {
        let seen = format!("no answer from {remote} inside {tunnel}");
        let mend = format!(
            "on {host}: weft doctor, and weft show; on the way: let {tunnel} pass from {local} to {remote} and back"
        );
        let finding = Finding::pass("path", host, seen, why);
        return vec![finding.worse(Level::Fail, Mend::Command(mend))];
    };
    let rtt = path.rtt_us.unwrap_or(0);
    let seen = format!("{remote} answers inside {tunnel} after {rtt} µs (question {tries})");
    let mut findings = vec![Finding::pass("path", host, seen, why)];
    let forward = format!("toward {host}");
    let back = format!("from {host}");
    findings.push(of_way(path, &forward, &path.forward));
    findings.push(of_way(path, &back, &path.back));
    // What the packets have shown of uplinks and of what is between them need not be said again.
    let of_guests = path.switches.iter().map(|switch| {
        let places = switch.places.iter().filter(|place| place.is_of_a_guest()).cloned();
        SwitchMtu { places: places.collect(), uplink: None, ..switch.clone() }
    });
    findings.extend(of_guests.flat_map(|switch| mtu::findings(&switch)));
    if path.remote_misfit {
        let why = "packets of the guests there are lost, or longer than the tunnel takes, on whatever way they come";
        let seen = "an interface of a guest there has an MTU that does not fit its switch";
        let mend = format!("on {host}: weft doctor --host {host} and the network file");
        let finding = Finding::pass("mtu_remote", host, seen, why);
        findings.push(finding.worse(Level::Fail, Mend::Command(mend)));
    }
    findings
}

/// An uplink that is too narrow for a way.
struct Narrow {
    who: String,
    mend: String,
    mtu: u32,
}

/// The uplink that is too narrow for a way of which packets of `mtu` bytes arrive. One that is narrower than that is not it.
fn narrow_uplink(path: &PathFacts, mtu: u16) -> Option<Narrow> {
    let PathFacts { host, needed, uplink, remote_uplink, .. } = path;
    let is_it = |found: u32| found < u32::from(*needed) && found <= u32::from(mtu);
    if let Some((device, mtu)) = uplink.as_ref().filter(|(_, found)| is_it(*found)) {
        let who = format!("this host's uplink {device} has MTU {mtu}");
        return Some(Narrow {
            who,
            mend: format!("ip link set dev {device} mtu {needed}"),
            mtu: *mtu,
        });
    }
    let (device, mtu) = remote_uplink.as_ref().filter(|(_, found)| is_it((*found).into()))?;
    let who = format!("the uplink {device} of {host} has MTU {mtu}");
    let mend = format!("on {host}: ip link set dev {device} mtu {needed}");
    Some(Narrow { who, mend, mtu: (*mtu).into() })
}

fn of_way(path: &PathFacts, which: &str, way: &Way) -> Finding {
    let PathFacts { host, needed, overhead, .. } = path;
    let mtu = way.mtu.unwrap_or(0);
    let why = "longer packets of guests do not arrive, while short ones do: connections open and then hang";
    let seen = format!("{which}: packets of {mtu} bytes arrive, of {needed} needed");
    let finding = Finding::pass("path_mtu", host, seen, why);
    if mtu >= *needed {
        // STT cuts its frames to what routers say; the others do not get there.
        let Some(told) = way.told.filter(|told| told.mtu < *needed) else { return finding };
        let seen = format!(
            "{which}: frames for {mtu} bytes arrive, in pieces of the {} that a router says",
            told.mtu
        );
        return Finding { seen, ..finding };
    }
    let narrow = narrow_uplink(path, mtu);
    // A device may take a little more than its MTU.
    let fits = narrow.as_ref().map_or(mtu.into(), |narrow| narrow.mtu);
    let smaller = format!(
        "or write underlay_mtu = {fits} in network.toml on all hosts (guests: {} at most)",
        fits.saturating_sub((*overhead).into())
    );
    let (who, mend) = match (narrow, way.told) {
        (Some(Narrow { who, mend, .. }), _) => (format!("; {who}"), format!("{mend}, {smaller}")),
        (None, Some(Told { router: Some(router), mtu: said })) => (
            format!("; {router} says that its next link takes {said}"),
            format!("raise the MTU behind {router} to {needed}, {smaller}"),
        ),
        (None, Some(Told { router: None, mtu: said })) => (
            format!("; a router has said {said}, within the last ten minutes"),
            format!("raise the MTU on the way to {needed}, {smaller}"),
        ),
        (None, None) => (
            "; nobody says so: a black hole".to_owned(),
            format!(
                "find the device with the smaller MTU (tracepath -n {}), or let ICMP pass that says so, {smaller}",
                path.remote
            ),
        ),
    };
    let seen = format!("{}{who}", finding.seen);
    Finding { seen, ..finding }.worse(Level::Fail, Mend::Command(mend))
}
