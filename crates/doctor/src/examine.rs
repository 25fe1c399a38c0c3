//! The whole examination: reads the facts, judges them, and writes the report.

use crate::facts::{self, HostFacts, NicFacts, Ports, Ruleset, TUNNEL_PORTS, Uplink};
use crate::finding::{Finding, Mend};
use crate::judge::reach::{self, Received};
use crate::judge::{host, mtu, nic, tunnel};
use crate::mend::Action;
use crate::report::{Fixed, NicReport, Report};
use flow::TunnelType;
use netdev::{Link, Netlink, Result};
use network::{Host, Network};
use std::collections::BTreeSet;

/// What is examined.
#[derive(Clone, Debug, Default)]
pub struct Subject<'a> {
    /// Devices that lead to other hosts. None: the uplink of the network file, or all hardware that is up.
    pub nics: Vec<String>,
    /// The network file, and which of its hosts this one is.
    pub network: Option<(&'a Network, &'a Host)>,
}

impl Subject<'_> {
    /// Examines it in the network namespace of the calling thread.
    ///
    /// # Errors
    /// A device that is not there, or a kernel that does not answer.
    pub fn examine(&self) -> Result<Report> {
        let names = self.devices()?;
        let tunnels = self.tunnels();
        let mut report = Report::default();
        let mut nics = Vec::new();
        for name in &names {
            nics.push(NicFacts::read(name)?);
        }
        let facts = HostFacts::read(&names)?;
        for nic in &nics {
            report.nics.push(NicReport::new(nic, tunnel::verdicts(nic)));
            report.findings.extend(nic::findings(nic, &facts, &tunnels));
        }
        report.findings.extend(host::findings(&facts, &nics));
        let links = Netlink::open()?.links()?;
        let uplinks: Vec<_> = names.iter().filter_map(|name| Uplink::find(&links, name)).collect();
        let received = self.received(&tunnels, &uplinks);
        report.findings.extend(reach::old_firewall(&facts.old_tables));
        report.findings.extend(reach::firewall(&Ruleset::read(), &received));
        let numbers: Vec<u16> =
            received.iter().map(|tunnel| tunnel.port).chain(TUNNEL_PORTS).collect();
        report.findings.extend(reach::ports(&Ports::read(&numbers)?, &received));
        if let Some((network, host)) = self.network {
            for switch in facts::mtu::read(network, host.index)? {
                report.findings.extend(mtu::findings(&switch));
            }
        }
        Ok(report)
    }

    /// Mends what is safe to mend, and examines again.
    ///
    /// # Errors
    /// As [`Subject::examine`]. What cannot be mended is in the report.
    pub fn mend(&self) -> Result<Report> {
        let fixed = apply_all(&self.examine()?.findings);
        Ok(Report { fixed, ..self.examine()? })
    }

    fn devices(&self) -> Result<Vec<String>> {
        if !self.nics.is_empty() {
            return Ok(self.nics.clone());
        }
        if let Some((_, host)) = self.network {
            return Ok(vec![host.uplink.clone()]);
        }
        let leads = |link: &Link| link.up && link.kind.is_none() && link.name != "lo";
        let links = Netlink::open()?.links()?;
        Ok(links.into_iter().filter(leads).map(|link| link.name).collect())
    }

    /// The tunnel types by which this host's switches reach others; all where nothing says which.
    fn tunnels(&self) -> Vec<TunnelType> {
        let Some((network, host)) = self.network else { return TunnelType::ALL.to_vec() };
        let switches = network.logical_switches().iter();
        let used: BTreeSet<&str> = switches
            .filter(|switch| switch.ports.iter().any(|port| port.host == host.index))
            .map(|switch| switch.tunnel.name())
            .collect();
        TunnelType::ALL.into_iter().filter(|tunnel| used.contains(tunnel.name())).collect()
    }

    fn received(&self, tunnels: &[TunnelType], uplinks: &[Uplink]) -> Vec<Received> {
        let standard = |tunnel: &TunnelType| Received::standard(*tunnel, uplinks);
        let mut received: Vec<_> = tunnels.iter().filter_map(standard).collect();
        let Some((network, host)) = self.network else { return received };
        let (family, options) = (network.underlay_family(), network.options());
        let others = network.hosts().iter().filter(|other| other.index != host.index);
        let remotes: Vec<_> = others.filter_map(|other| other.underlay(family)).collect();
        for tunnel in &mut received {
            tunnel.v6 = family == network::Family::V6;
            tunnel.local = host.underlay(family);
            tunnel.remotes.clone_from(&remotes);
            tunnel.port = match tunnel.tunnel {
                TunnelType::Vxlan => options.vxlan.udp_port,
                TunnelType::Geneve => options.geneve.udp_port,
                TunnelType::Stt => options.stt.tcp_port,
                TunnelType::Gre | TunnelType::Vlan | TunnelType::QinQ => 0,
            };
        }
        received
    }
}

/// Mends what of these findings is safe to mend, in the namespace of the calling thread.
pub fn apply_all(findings: &[Finding]) -> Vec<Fixed> {
    let actions = findings.iter().filter_map(|finding| match &finding.mend {
        Some(Mend::Safe(actions)) => Some(actions),
        _ => None,
    });
    actions.flatten().map(apply).collect()
}

fn apply(action: &Action) -> Fixed {
    let failed = action.apply().err().map(|error| error.to_string());
    Fixed { did: action.command(), undo: action.undo().command(), failed }
}
