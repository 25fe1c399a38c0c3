//! The whole diagnosis: read the facts, run the checks, collect the report.

use crate::checks::tunnel::OuterHeaders;
use crate::checks::tunnel_reception::{self, ReceivedTunnel};
use crate::checks::{host, mtu, nic, tunnel};
use crate::facts::{
    self, Device, HostFacts, NicFacts, Ruleset, TunnelListeners, Uplink, registered_ports,
};
use crate::finding::{Finding, Fix, Level};
use crate::fix::Action;
use crate::report::{Fixed, NicReport, Report};
use flow::TunnelType;
use netdev::{Error, Link, Netlink, Result};
use network::{Host, Network};
use std::collections::BTreeSet;

/// The scope of a diagnosis.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis<'a> {
    /// Devices that lead to other hosts. If empty: the uplink in the network file, otherwise all
    /// hardware devices that are up.
    pub nics: Vec<String>,
    /// The network file, and the entry of this host in it.
    pub network: Option<(&'a Network, &'a Host)>,
}

impl Diagnosis<'_> {
    /// Runs all checks in the network namespace of the calling thread. A check whose input cannot
    /// be read becomes a finding.
    ///
    /// # Errors
    /// A device in `nics` does not exist, or the kernel does not reply to netlink requests.
    pub fn diagnose(&self) -> Result<Report> {
        let links = Netlink::open()?.links()?;
        let mut report = Report::default();
        let mut uplinks = Vec::new();
        for name in self.devices(&links) {
            match (Uplink::find(&links, &name), self.network) {
                (Some(uplink), _) => uplinks.push(uplink),
                (None, Some((_, host))) if self.nics.is_empty() => {
                    report.findings.push(no_uplink(&name, &host.name));
                }
                (None, _) => return Err(Error::not_found(format!("look up link {name}"), "link")),
            }
        }
        let (tunnels, outer) = (self.tunnels(), self.outer());
        let (nics, unread) = read_nics(&uplinks);
        report.findings.extend(unread);
        let names: Vec<_> = nics.iter().map(|nic| nic.name.clone()).collect();
        let facts = HostFacts::read(&names, &links);
        for nic in &nics {
            report.nics.push(NicReport::new(nic, tunnel::all_tunnels(nic, outer)));
            report.findings.extend(nic::findings(nic, &facts, &tunnels, outer));
        }
        report.findings.extend(host::findings(&facts, &nics));
        let received = self.received(&tunnels, &uplinks);
        report.findings.extend(tunnel_reception::legacy_firewall(&facts.old_tables));
        report.findings.extend(tunnel_reception::firewall(&Ruleset::read(), &received));
        let numbers: Vec<u16> =
            received.iter().map(|tunnel| tunnel.port).chain(registered_ports()).collect();
        report.findings.extend(match TunnelListeners::read(&numbers) {
            Ok(ports) => tunnel_reception::ports(&ports, &received),
            Err(error) => vec![unreadable("port", "host", &error, "ss -lunpt; ip -d link")],
        });
        if let Some((network, host)) = self.network {
            report.findings.extend(match facts::mtu::read(network, host.index) {
                Ok(switches) => switches.iter().flat_map(mtu::findings).collect(),
                Err(error) => vec![unreadable("mtu", "host", &error, "ip link")],
            });
        }
        Ok(report)
    }

    /// Applies the safe fixes, and runs the checks again.
    ///
    /// # Errors
    /// As [`Diagnosis::diagnose`]. A fix that fails is reported in [`Report::fixed`].
    pub fn fix(&self) -> Result<Report> {
        let fixed = apply_all(&self.diagnose()?.findings);
        Ok(Report { fixed, ..self.diagnose()? })
    }

    fn devices(&self, links: &[Link]) -> Vec<String> {
        if !self.nics.is_empty() {
            return self.nics.clone();
        }
        if let Some((_, host)) = self.network {
            return vec![host.uplink.clone()];
        }
        // The ports of a bond are found through the bond.
        let is_bond = |link: &Link| matches!(link.kind.as_deref(), Some("bond" | "team"));
        let is_candidate = |link: &&Link| {
            let is_port =
                links.iter().any(|other| link.master == Some(other.index) && is_bond(other));
            link.up && link.name != "lo" && (is_bond(link) || link.kind.is_none() && !is_port)
        };
        links.iter().filter(is_candidate).map(|link| link.name.clone()).collect()
    }

    fn outer(&self) -> OuterHeaders {
        self.network.map_or(OuterHeaders::DEFAULT, |(network, _)| {
            OuterHeaders::of(network.underlay_family())
        })
    }

    /// The tunnel types that this host's switches use; all types without a network file.
    fn tunnels(&self) -> Vec<TunnelType> {
        let Some((network, host)) = self.network else { return TunnelType::ALL.to_vec() };
        let switches = network.logical_switches().iter();
        let used: BTreeSet<&str> = switches
            .filter(|switch| switch.ports.iter().any(|port| port.host == host.index))
            .map(|switch| switch.tunnel.name())
            .collect();
        TunnelType::ALL.into_iter().filter(|tunnel| used.contains(tunnel.name())).collect()
    }

    fn received(&self, tunnels: &[TunnelType], uplinks: &[Uplink]) -> Vec<ReceivedTunnel> {
        let standard = |tunnel: &TunnelType| ReceivedTunnel::standard(*tunnel, uplinks);
        let mut received: Vec<_> = tunnels.iter().filter_map(standard).collect();
        let Some((network, host)) = self.network else { return received };
        let (family, options) = (network.underlay_family(), network.options());
        let others = network.hosts().iter().filter(|other| other.index != host.index);
        let remotes: Vec<_> = others.filter_map(|other| other.underlay(family)).collect();
        for tunnel in &mut received {
            tunnel.v6 = family == network::UnderlayFamily::V6;
            tunnel.local = host.underlay(family);
            tunnel.remotes.clone_from(&remotes);
            tunnel.port = options.of(tunnel.tunnel).port;
        }
        received
    }
}

/// Reads the facts of these devices and of all devices below them, each once. Returns a finding
/// for each device that could not be read.
fn read_nics(uplinks: &[Uplink]) -> (Vec<NicFacts>, Vec<Finding>) {
    let (mut nics, mut unread) = (Vec::<NicFacts>::new(), Vec::new());
    let devices =
        uplinks.iter().flat_map(|uplink| std::iter::once(&uplink.device).chain(&uplink.below));
    for Device { name, .. } in devices {
        if nics.iter().any(|known| known.name == *name) {
            continue;
        }
        match NicFacts::read(name) {
            Ok(nic) => nics.push(nic),
            Err(error) => {
                unread.push(unreadable("nic", name, &error, &format!("ip -d link show {name}")))
            }
        }
    }
    (nics, unread)
}

fn unreadable(check: &'static str, subject: &str, error: &Error, look: &str) -> Finding {
    Finding::unreadable(check, subject, error, Fix::Command(look.to_owned()))
}

fn no_uplink(name: &str, host: &str) -> Finding {
    let why = "tunnels of this host are sent through its uplink";
    let fix = format!(
        "ip -br link; then set the uplink of {host} in network.toml to the device that leads to \
         the other hosts"
    );
    let finding = Finding::pass("link", name, "no such device", why);
    finding.worse(Level::Fail, Fix::Command(fix))
}

/// Applies the safe fixes of these findings in the namespace of the calling thread.
pub fn apply_all(findings: &[Finding]) -> Vec<Fixed> {
    let actions = findings.iter().filter_map(|finding| match &finding.fix {
        Some(Fix::Safe(actions)) => Some(actions),
        _ => None,
    });
    actions.flatten().map(apply).collect()
}

fn apply(action: &Action) -> Fixed {
    let failed = action.apply().err().map(|error| error.to_string());
    Fixed { did: action.command(), undo: action.undo().command(), failed }
}
