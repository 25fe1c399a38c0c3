//! Checks of `health` of load balancers: each backend is a guest, and its network has a source
//! address for the checks.

use super::router::CheckedRouters;
use crate::errors::ProblemCollector;
use crate::health::{MAX_HOSTS, MAX_SWITCHES, is_monitor_mac};
use crate::read::{HealthDraft, HealthKind, SwitchDraft};
use crate::section::Located;
use crate::{HealthChecks, HealthTarget, RouterIndex, SwitchIndex};
use lflow::actions::Transport;
use services::health::{HttpPath, Kind};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// The guests that may be backends.
pub(super) struct Guests<'d> {
    pub(super) switches: &'d [SwitchDraft],
    pub(super) routers: &'d CheckedRouters,
    /// The number of hosts.
    pub(super) hosts: usize,
}

impl Guests<'_> {
    /// The connected parts of the network that a load balancer is in.
    pub(super) fn places(
        &self,
        switches: &[Located<SwitchIndex>],
        routers: &[Located<RouterIndex>],
    ) -> BTreeSet<usize> {
        let connectivity = &self.routers.connectivity;
        let of_switches = switches.iter().map(|it| connectivity.part_of_switch(it.value.value()));
        let of_routers = routers.iter().map(|it| connectivity.part_of_router(it.value.value()));
        of_switches.chain(of_routers).collect()
    }

    /// The checks of these backends; `None` if one is not possible, which has been reported.
    pub(super) fn checks(
        &self,
        report: &mut ProblemCollector<'_>,
        health: &HealthDraft,
        protocol: Transport,
        (backends, places): (&[Located<SocketAddr>], &BTreeSet<usize>),
    ) -> Option<HealthChecks> {
        let kind = kind(report, health, protocol)?;
        if self.hosts > MAX_HOSTS {
            report.error(
                health.at,
                format!("health checks work with at most {MAX_HOSTS} hosts; remove `health`"),
            );
            return None;
        }
        let targets: Vec<_> =
            backends.iter().map(|backend| self.target(report, health, *backend, places)).collect();
        let targets = targets.into_iter().collect::<Option<_>>()?;
        Some(HealthChecks { kind, timing: health.timing, targets })
    }

    fn target(
        &self,
        report: &mut ProblemCollector<'_>,
        health: &HealthDraft,
        backend: Located<SocketAddr>,
        places: &BTreeSet<usize>,
    ) -> Option<HealthTarget> {
        let ip = backend.value.ip();
        let here =
            |index: &usize| places.contains(&self.routers.connectivity.part_of_switch(*index));
        let ports = (0..self.switches.len())
            .filter(here)
            .flat_map(|index| self.switches[index].ports.iter().map(move |port| (index, port)));
        let mut found = ports.filter_map(|(index, port)| {
            let net = port.addresses.iter().find(|net| net.value.addr() == ip)?;
            Some((index, port, net.value))
        });
        let (Some((index, port, net)), None) = (found.next(), found.next()) else {
            report.error(
                backend.at,
                format!(
                    "{ip} is not the address of one guest that this load balancer reaches, so its \
                     health cannot be checked; add it to a port, or remove `health`"
                ),
            );
            return None;
        };
        let source = health.sources.iter().find(|source| net.contains(&source.value));
        let Some(source) = source else {
            report.error(
                health.at,
                format!(
                    "`sources` has no address in {}, the network of the backend {ip}; add one \
                     that nobody uses",
                    net.trunc()
                ),
            );
            return None;
        };
        self.check_source(report, *source, index)?;
        let mac = port.mac?.value;
        let switch = SwitchIndex(index);
        (index < MAX_SWITCHES).then_some(HealthTarget {
            backend: backend.value,
            switch,
            port: port.key,
            mac,
            source: source.value,
        })
    }

    /// Checks that no port of the switch has the source address of health checks, or one of their
    /// MAC addresses.
    fn check_source(
        &self,
        report: &mut ProblemCollector<'_>,
        source: Located<IpAddr>,
        switch: usize,
    ) -> Option<()> {
        let guests = self.switches[switch].ports.iter().flat_map(|port| &port.addresses);
        let mut all = guests.chain(&self.routers.addresses[switch]);
        if let Some(net) = all.find(|net| net.value.addr() == source.value) {
            let line = report.line(net.at);
            report.error(
                source.at,
                format!(
                    "{} is the address of a port in line {line}; health checks need one that \
                     nobody uses",
                    source.value
                ),
            );
            return None;
        }
        let macs = self.switches[switch].ports.iter().filter_map(|port| port.mac);
        if let Some(mac) = macs.into_iter().find(|mac| is_monitor_mac(mac.value)) {
            report.error(
                mac.at,
                format!("{} is kept for health checks; choose another MAC address", mac.value),
            );
            return None;
        }
        Some(())
    }
}

/// The kind of check for backends of this protocol.
fn kind(
    report: &mut ProblemCollector<'_>,
    health: &HealthDraft,
    protocol: Transport,
) -> Option<Kind> {
    let default = match protocol {
        Transport::Tcp => HealthKind::Tcp,
        Transport::Udp => HealthKind::Udp,
        Transport::Sctp => {
            report
                .error(health.at, "backends of protocol `sctp` cannot be checked; remove `health`");
            return None;
        }
    };
    let kind = health.kind.map_or(default, |kind| kind.value);
    let fits = (kind == HealthKind::Udp) == (protocol == Transport::Udp);
    if let Some(given) = health.kind.filter(|_| !fits) {
        let right = match protocol {
            Transport::Udp => "\"udp\"",
            _ => "\"tcp\" or \"http\"",
        };
        let name = protocol.name();
        report.error(
            given.at,
            format!("backends of protocol `{name}` are checked in another way; write {right}"),
        );
        return None;
    }
    match (kind, &health.path) {
        (HealthKind::Http, path) => {
            let path = path.as_ref().map(|path| path.value.clone());
            Some(Kind::Http(path.or_else(|| HttpPath::new("/"))?))
        }
        (_, Some(path)) => {
            report.error(path.at, "only checks of kind \"http\" have a `path`");
            None
        }
        (HealthKind::Tcp, None) => Some(Kind::Tcp),
        (HealthKind::Udp, None) => Some(Kind::Udp),
    }
}
