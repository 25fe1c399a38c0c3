//! Whether the way to another host carries what the network file promises.

use crate::finding::{Finding, Level, Mend};
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
    findings
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
    let smaller = format!(
        "or write underlay_mtu = {mtu} in network.toml on all hosts (guests: {} at most)",
        mtu.saturating_sub(*overhead)
    );
    let (who, mend) = match way.told {
        Some(Told { router: Some(router), mtu: said }) => (
            format!("; {router} says that its next link takes {said}"),
            format!("raise the MTU behind {router} to {needed}, {smaller}"),
        ),
        Some(Told { router: None, mtu: said }) => (
            format!("; a router has said {said}, within the last ten minutes"),
            format!("raise the MTU on the way to {needed}, {smaller}"),
        ),
        None => (
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
