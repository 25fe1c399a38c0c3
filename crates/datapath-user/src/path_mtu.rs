//! Path MTU discovery for tunnels: listens for ICMP errors from routers of the underlay (RFC 1191,
//! RFC 8201).
//!
//! [`policy`] decides whether to believe an error. Nothing else limits the path MTU: the sockets of
//! the tunnels ignore the path MTU that the kernel has learned. The believed MTU expires after ten
//! minutes (RFC 1191 section 6.3), because the path may have changed.
//!
//! Where routers send no errors, the daemon finds the MTU with probes of its own (RFC 8899) and
//! reports it by [`PathMtuDiscovery::probed`].

mod policy;

use super::fast_path::PathMtu;
use datapath::config::{EndpointConfig, Underlay};
use datapath::stats::{PathMtuReport, PathMtuReports};
use flow::EndpointId;
use netdev::icmp::TooBigSocket;
use netdev::{Error, Ifindex};
use policy::{IgnoreReason, Limits, Tunnel};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};
use wire::TooBig;

/// How long a path MTU is believed.
const MAX_AGE: Duration = Duration::from_secs(600);
/// ICMP errors handled at a time.
const BATCH: usize = 64;
/// The time between log messages about ignored reports of one reason.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A believed path MTU.
#[derive(Clone, Copy, Debug)]
struct LearnedPathMtu {
    /// From this host's address to the end point's.
    path: (IpAddr, IpAddr),
    /// In bytes of outer packet.
    mtu: u16,
    /// The sender of the last report; `None` if probes have found the MTU.
    router: Option<IpAddr>,
    /// When it arrived or was found.
    at: Instant,
}

/// The ignored reports of one reason.
#[derive(Clone, Copy, Default, Debug)]
struct IgnoredReports {
    total: u64,
    /// Reports since the last log message.
    since_last_log: u64,
    logged: Option<Instant>,
}

/// The sockets that receive ICMP errors, and the path MTUs discovered.
#[derive(Debug)]
pub(super) struct PathMtuDiscovery {
    sockets: Vec<(IpAddr, TooBigSocket)>,
    /// Outer source ports of UDP and STT.
    source_ports: Range<u32>,
    /// The least path MTU that is believed, in bytes.
    least: u16,
    /// The same for single end points, by remote address.
    least_by_remote: BTreeMap<IpAddr, u16>,
    /// The tunnels by local and remote address.
    tunnels: HashMap<(IpAddr, IpAddr), Vec<Tunnel>>,
    found: HashMap<EndpointId, LearnedPathMtu>,
    /// The number of believed reports.
    believed: u64,
    ignored: BTreeMap<IgnoreReason, IgnoredReports>,
}

impl PathMtuDiscovery {
    /// Starts without known path MTUs. `source_ports` is the range of outer source ports.
    pub(super) fn new(source_ports: Range<u32>) -> Self {
        Self {
            sockets: Vec::new(),
            source_ports,
            least: 0,
            least_by_remote: BTreeMap::new(),
            tunnels: HashMap::new(),
            found: HashMap::new(),
            believed: 0,
            ignored: BTreeMap::new(),
        }
    }

    /// Replaces the end points. Forgets the path MTUs of other end points, and those below the new
    /// least path MTU. Returns the known path MTUs of all end points, and `None` for those
    /// forgotten.
    pub(super) fn follow(&mut self, underlay: &Underlay) -> Vec<PathMtu> {
        self.least = underlay.least_path_mtu_bytes;
        self.least_by_remote.clone_from(&underlay.least_path_mtus);
        self.tunnels.clear();
        let mut paths: HashSet<(EndpointId, (IpAddr, IpAddr))> = HashSet::new();
        for &EndpointConfig { id, spec, local, remote } in &underlay.endpoints {
            let tunnel = Tunnel::new(id, spec, local, remote);
            self.tunnels.entry((local, remote)).or_default().push(tunnel);
            paths.insert((id, (local, remote)));
        }
        // A number may now mean another end point.
        let is_wrong = |id: &EndpointId, it: &mut LearnedPathMtu| {
            it.mtu < underlay.least_path_mtu(it.path.1) || !paths.contains(&(*id, it.path))
        };
        let forgotten = self.found.extract_if(is_wrong).map(|(id, _)| (id, None));
        let mut changes: Vec<PathMtu> = forgotten.collect();
        changes.extend(self.found.iter().map(|(id, it)| (*id, Some(it.mtu))));
        changes
    }

    /// Opens the sockets for the local addresses of the tunnels on the device `uplink`.
    ///
    /// # Errors
    /// A socket cannot be opened; the path MTUs of its local address are not discovered.
    pub(super) fn open(&mut self, uplink: Ifindex) -> Result<(), Error> {
        self.sockets.clear();
        let mut locals: Vec<IpAddr> = self.tunnels.keys().map(|(local, _)| *local).collect();
        locals.sort_unstable();
        locals.dedup();
        for local in locals {
            self.sockets.push((local, TooBigSocket::open(local, Some(uplink))?));
        }
        Ok(())
    }

    /// The sockets to poll, each with the number to pass to [`receive`](Self::receive).
    pub(super) fn sockets(&self) -> impl Iterator<Item = (usize, &TooBigSocket)> {
        self.sockets.iter().map(|(_, socket)| socket).enumerate()
    }

    /// Reads ICMP errors from a socket; returns the changes of path MTUs.
    pub(super) fn receive(&mut self, number: usize, now: Instant) -> Vec<PathMtu> {
        let mut changes = Vec::new();
        let Some((_, socket)) = self.sockets.get(number) else { return changes };
        let reports = std::iter::from_fn(|| socket.recv_from().ok().flatten()).take(BATCH);
        for (report, router) in reports.collect::<Vec<_>>() {
            self.handle(&report, router, now, &mut changes);
        }
        changes
    }

    fn handle(
        &mut self,
        report: &TooBig,
        router: IpAddr,
        now: Instant,
        changes: &mut Vec<PathMtu>,
    ) {
        let path = (report.local, report.remote);
        let Some(tunnels) = self.tunnels.get(&path) else {
            return self.ignore(IgnoreReason::UnknownEndPoint, report, router, now);
        };
        let mut results: Vec<Result<EndpointId, IgnoreReason>> = Vec::new();
        for tunnel in tunnels.iter().filter(|tunnel| tunnel.has_carrier(report)) {
            let believed = self.found.get(&tunnel.id).map(|it| it.mtu);
            let limits = Limits { least: self.least_mtu(report.remote), believed };
            let result = policy::judge(report, tunnel, &self.source_ports, limits);
            results.push(result.map(|mtu| {
                let learned = LearnedPathMtu { path, mtu, router: Some(router), at: now };
                self.found.insert(tunnel.id, learned);
                if believed != Some(mtu) {
                    let remote = report.remote;
                    messages::log!(PATH_MTU_LOWERED, %remote, %router, mtu, "path MTU is lower");
                    changes.push((tunnel.id, Some(mtu)));
                }
                tunnel.id
            }));
        }
        // A report counts once, although it may concern several tunnels: GRE and NVGRE.
        if results.iter().any(Result::is_ok) {
            self.believed += 1;
        } else {
            let why = results.first().and_then(|result| result.err());
            self.ignore(why.unwrap_or(IgnoreReason::WrongTunnel), report, router, now);
        }
    }

    /// Applies a path MTU that probes have found for an end point. Returns the change, if there is
    /// one.
    pub(super) fn probed(&mut self, id: EndpointId, mtu: u16, now: Instant) -> Option<PathMtu> {
        let mut paths = self.tunnels.iter();
        let (path, configured) = paths.find_map(|(path, tunnels)| {
            let tunnel = tunnels.iter().find(|tunnel| tunnel.id == id)?;
            Some((*path, tunnel.spec.path_mtu_bytes))
        })?;
        let before = self.found.get(&id).copied();
        let is_reported = before.is_some_and(|it| it.router.is_some());
        if mtu >= configured {
            before?;
            self.found.remove(&id);
            messages::log!(PATH_MTU_RAISED, remote = %path.1, "the path carries its MTU again");
            return Some((id, None));
        }
        let mtu = mtu.max(self.least_mtu(path.1));
        if before.is_some_and(|it| is_reported && it.mtu <= mtu) {
            return None;
        }
        self.found.insert(id, LearnedPathMtu { path, mtu, router: None, at: now });
        if before.is_some_and(|it| it.mtu == mtu) {
            return None;
        }
        messages::log!(
            PATH_MTU_PROBED,
            remote = %path.1, mtu,
            "probes have found a path MTU that no router has reported"
        );
        Some((id, Some(mtu)))
    }

    /// The least path MTU that is believed of the path to `remote`.
    fn least_mtu(&self, remote: IpAddr) -> u16 {
        self.least_by_remote.get(&remote).copied().unwrap_or(self.least)
    }

    /// Counts an ignored report, and logs it at a limited rate.
    fn ignore(&mut self, reason: IgnoreReason, report: &TooBig, router: IpAddr, now: Instant) {
        let count = self.ignored.entry(reason).or_default();
        count.total += 1;
        count.since_last_log += 1;
        let is_recent = |at: Instant| now.saturating_duration_since(at) < LOG_INTERVAL;
        // Repeated reports are normal while packets are on the way.
        if reason == IgnoreReason::NotLower || count.logged.is_some_and(is_recent) {
            return;
        }
        let reports = std::mem::take(&mut count.since_last_log);
        count.logged = Some(now);
        let TooBig { mtu, local, remote, .. } = report;
        let protocol = report.protocol.0;
        messages::log!(
            PATH_MTU_IGNORED,
            %router, %local, %remote, protocol, mtu, reports,
            "ignored an ICMP report of a path MTU: {}", reason.description()
        );
    }

    /// Removes expired path MTUs; returns them as changes.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<PathMtu> {
        let is_old = |_: &EndpointId, it: &mut LearnedPathMtu| {
            now.saturating_duration_since(it.at) > MAX_AGE
        };
        self.found.extract_if(is_old).map(|(id, _)| (id, None)).collect()
    }

    /// The report behind each believed path MTU, by tunnel type, remote and local address.
    pub(super) fn reports(
        &self,
        now: Instant,
    ) -> HashMap<(&'static str, IpAddr, IpAddr), PathMtuReport> {
        let mut reports = HashMap::new();
        for (&(local, remote), tunnels) in &self.tunnels {
            for tunnel in tunnels {
                let Some(it) = self.found.get(&tunnel.id) else { continue };
                let age_s = now.saturating_duration_since(it.at).as_secs();
                let report = PathMtuReport { mtu: it.mtu, router: it.router, age_s };
                reports.insert((tunnel.spec.tunnel.name(), remote, local), report);
            }
        }
        reports
    }

    /// How many reports were believed and ignored.
    pub(super) fn counts(&self) -> PathMtuReports {
        let ignored = self.ignored.iter();
        PathMtuReports {
            least_path_mtu: self.least,
            believed: self.believed,
            ignored: ignored.map(|(reason, it)| (reason.name().to_owned(), it.total)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::TunnelType;
    use wire::Protocol;
    use wire::icmp::Quoted;

    /// VXLAN, STT and GRE from host 1 to host 2.
    fn underlay() -> Underlay {
        let tunnels = [(TunnelType::Vxlan, 4789), (TunnelType::Stt, 7471), (TunnelType::Gre, 0)];
        let endpoints = (0..).zip(tunnels).map(|(id, (tunnel, port))| {
            let spec = policy::tests::spec(tunnel, port, false);
            EndpointConfig { id: EndpointId(id), spec, local: host(1), remote: host(2) }
        });
        Underlay { endpoints: endpoints.collect(), ..Underlay::default() }
    }

    fn paths() -> PathMtuDiscovery {
        let mut paths = PathMtuDiscovery::new(49_152..49_216);
        assert_eq!(paths.follow(&underlay()), []);
        paths
    }

    fn host(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn report(mtu: u16, protocol: Protocol, quoted: Quoted) -> TooBig {
        let (local, remote) = (host(1), host(2));
        TooBig { mtu, quoted_len: 1500, dont_fragment: true, local, remote, protocol, quoted }
    }

    const VXLAN: Quoted = Quoted::Ports { src: 49_160, dst: 4789 };

    fn handle(paths: &mut PathMtuDiscovery, report: &TooBig, now: Instant) -> Vec<PathMtu> {
        let mut changes = Vec::new();
        paths.handle(report, host(9), now, &mut changes);
        changes
    }

    #[test]
    fn report_changes_only_the_tunnel_that_it_quotes() {
        let forged = Quoted::Ports { src: 53, dst: 4789 };
        let gre = Quoted::Gre { start: [0, 0, 0x65, 0x58], key: None };
        let udp = |quoted| report(1400, Protocol::UDP, quoted);
        for (report, expected) in [
            (udp(VXLAN), Ok(EndpointId(0))),
            (udp(forged), Err("wrong_source_port")),
            (report(1400, Protocol::TCP, VXLAN), Err("wrong_tunnel")),
            (report(1400, Protocol::GRE, gre), Ok(EndpointId(2))),
            (udp(Quoted::Other), Err("truncated_quote")),
            (TooBig { remote: host(3), ..udp(VXLAN) }, Err("unknown_end_point")),
            (TooBig { local: host(3), ..udp(VXLAN) }, Err("unknown_end_point")),
            (TooBig { mtu: 552, ..udp(VXLAN) }, Err("below_least_path_mtu")),
        ] {
            let mut paths = paths();
            let changes = handle(&mut paths, &report, Instant::now());
            let counts = paths.counts();
            match expected {
                Ok(id) => {
                    assert_eq!(changes, [(id, Some(1400))], "{report:?}");
                    assert_eq!((counts.believed, counts.ignored.len()), (1, 0));
                }
                Err(reason) => {
                    assert_eq!(changes, [], "{report:?}");
                    assert_eq!(counts.ignored, [(reason.to_owned(), 1)].into(), "{report:?}");
                    assert_eq!(counts.believed, 0);
                }
            }
        }
    }

    #[test]
    fn lowest_path_mtu_is_valid_for_ten_minutes() {
        let (mut paths, start) = (paths(), Instant::now());
        let mut changes_after = |mtu, minutes: u64| {
            let quoted = Quoted::Ports { src: 49_152, dst: 7471 };
            let now = start + Duration::from_secs(minutes * 60);
            let changes = handle(&mut paths, &report(mtu, Protocol::TCP, quoted), now);
            changes.into_iter().chain(paths.expire(now)).map(|(_, mtu)| mtu).collect::<Vec<_>>()
        };
        assert_eq!(changes_after(1400, 0), [Some(1400)]);
        assert_eq!(changes_after(1450, 1), []);
        assert_eq!(changes_after(1300, 2), [Some(1300)]);
        assert_eq!(changes_after(1300, 11), [], "a repeated report extends the time");
        assert_eq!(changes_after(1450, 22), [None]);
    }

    #[test]
    fn believed_path_mtu_is_shown_with_its_router_and_age() {
        let (mut paths, start) = (paths(), Instant::now());
        handle(&mut paths, &report(1400, Protocol::UDP, VXLAN), start);
        let reports = paths.reports(start + Duration::from_secs(7));
        let expected = PathMtuReport { mtu: 1400, router: Some(host(9)), age_s: 7 };
        assert_eq!(reports, [(("vxlan", host(2), host(1)), expected)].into());
    }

    #[test]
    fn probed_path_mtu_is_valid_until_probes_find_more_and_never_below_the_least() {
        let (mut paths, start) = (paths(), Instant::now());
        let id = EndpointId(0);
        assert_eq!(paths.probed(EndpointId(9), 1400, start), None, "there is no such end point");
        assert_eq!(paths.probed(id, 1500, start), None, "that is the configured MTU");
        assert_eq!(paths.probed(id, 1400, start), Some((id, Some(1400))));
        assert_eq!(paths.probed(id, 1400, start + MAX_AGE), None, "it is found again");
        assert_eq!(paths.expire(start + MAX_AGE + Duration::from_secs(1)), []);
        let reports = paths.reports(start + MAX_AGE);
        let expected = PathMtuReport { mtu: 1400, router: None, age_s: 0 };
        assert_eq!(reports, [(("vxlan", host(2), host(1)), expected)].into());
        assert_eq!(paths.probed(id, 600, start), Some((id, Some(1280))), "the least path MTU");
        assert_eq!(paths.probed(id, 1450, start), Some((id, Some(1450))));
        assert_eq!(paths.probed(id, 9000, start), Some((id, None)));
        assert_eq!(paths.expire(start + MAX_AGE * 2), []);
    }

    #[test]
    fn report_of_a_router_is_lowered_and_ended_but_not_raised_by_probes() {
        let (mut paths, start) = (paths(), Instant::now());
        let id = EndpointId(0);
        handle(&mut paths, &report(1400, Protocol::UDP, VXLAN), start);
        assert_eq!(paths.probed(id, 1450, start), None);
        assert_eq!(paths.probed(id, 1300, start), Some((id, Some(1300))));
        handle(&mut paths, &report(1290, Protocol::UDP, VXLAN), start);
        assert_eq!(paths.probed(id, 1500, start), Some((id, None)), "the report was wrong");
    }

    #[test]
    fn belief_ends_when_the_end_point_or_the_least_path_mtu_changes() {
        let reported = || {
            let mut paths = paths();
            handle(&mut paths, &report(1400, Protocol::UDP, VXLAN), Instant::now());
            paths
        };
        assert_eq!(reported().follow(&underlay()), [(EndpointId(0), Some(1400))]);
        let strict = Underlay { least_path_mtu_bytes: 1401, ..underlay() };
        assert_eq!(reported().follow(&strict), [(EndpointId(0), None)]);
        let strict = Underlay { least_path_mtus: [(host(2), 1401)].into(), ..underlay() };
        assert_eq!(reported().follow(&strict), [(EndpointId(0), None)]);
        let other = Underlay { least_path_mtus: [(host(3), 1401)].into(), ..underlay() };
        assert_eq!(reported().follow(&other), [(EndpointId(0), Some(1400))]);
        let mut moved = underlay();
        moved.endpoints.iter_mut().for_each(|endpoint| endpoint.remote = host(3));
        assert_eq!(reported().follow(&moved), [(EndpointId(0), None)]);
        assert_eq!(reported().follow(&Underlay::default()), [(EndpointId(0), None)]);
    }

    #[test]
    fn least_path_mtu_of_an_end_point_takes_precedence() {
        for (least, ours, mtu, expected) in [
            (1280, 1400, 1399, None),
            (1280, 1400, 1400, Some(1400)),
            (1400, 1280, 1300, Some(1300)),
            (1400, 1280, 1279, None),
        ] {
            let mut paths = PathMtuDiscovery::new(49_152..49_216);
            let least_path_mtus = [(host(2), ours)].into();
            let bounded = Underlay { least_path_mtu_bytes: least, least_path_mtus, ..underlay() };
            paths.follow(&bounded);
            handle(&mut paths, &report(mtu, Protocol::UDP, VXLAN), Instant::now());
            let found = paths.found.get(&EndpointId(0)).map(|it| it.mtu);
            assert_eq!(found, expected, "{mtu}");
            let probed = paths.probed(EndpointId(1), 600, Instant::now());
            assert_eq!(probed, Some((EndpointId(1), Some(ours))));
        }
    }

    #[test]
    fn ignored_reports_are_logged_at_a_limited_rate() {
        let (mut paths, start) = (paths(), Instant::now());
        for _ in 0..1000 {
            handle(&mut paths, &report(552, Protocol::UDP, VXLAN), start);
        }
        let count = |paths: &PathMtuDiscovery| paths.ignored[&IgnoreReason::BelowLeast];
        assert_eq!((count(&paths).total, count(&paths).since_last_log), (1000, 999));
        handle(&mut paths, &report(552, Protocol::UDP, VXLAN), start + LOG_INTERVAL);
        assert_eq!((count(&paths).total, count(&paths).since_last_log), (1001, 0));
    }
}
