//! Measures the path MTU to another host, in both directions, and answers the probes of other
//! hosts.
//!
//! Requests and replies are frames of the hosts themselves inside the tunnel ([`switch::probe`]). A
//! long request gets a short reply, and a short request can ask for a long reply, so each direction
//! is measured separately.

use super::deployment::{Deployment, list_names};
use datapath::Datapath;
use datapath::config::EndpointConfig;
use doctor::facts::{self, SwitchMtu};
use doctor::path::{PathDirection, PathFacts, PmtuReport, search};
use flow::{Action, DatapathKey, EndpointId, PortNo, TunnelKey};
use netdev::Netlink;
use netdev::icmp::TooBigSocket;
use network::{Placement, TunnelOptions, overhead_bytes};
use packet::PacketBuf;
use std::collections::BTreeSet;
use std::collections::hash_map::{Entry, HashMap, RandomState};
use std::hash::BuildHasher;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use switch::probe::{Probe, ReceivedProbe};

/// Capacity of the queue of received probes.
pub const QUEUE: usize = 256;
/// Maximum rate of replies, so that requests cannot be used to amplify traffic.
const REPLIES_PER_SECOND: u32 = 1_000;
/// How long an ICMP "packet too big" message stays valid.
const TOO_BIG_AGE: Duration = Duration::from_secs(30);
/// How long the MTUs of this host are cached.
const LOCAL_MTU_AGE: Duration = Duration::from_secs(1);
/// Maximum number of attempts for the first request; each waits [`FIRST_TIMEOUT`] for its reply.
const MAX_TRIES: u32 = 5;
const FIRST_TIMEOUT: Duration = Duration::from_millis(300);
/// Bounds of the timeout of later requests, which is four round trips.
const MIN_TIMEOUT: Duration = Duration::from_millis(60);
const MAX_TIMEOUT: Duration = Duration::from_millis(300);
const ETHERNET_HEADER_LEN: u16 = 14;

/// The path probes of one host: measures paths, and answers other hosts.
pub struct Probes {
    datapath: Arc<dyn Datapath>,
    deployment: Arc<RwLock<Arc<Deployment>>>,
    /// The measurements that wait for replies, by the token of their requests.
    waiting: Mutex<HashMap<u64, Waiting>>,
    /// The source of unpredictable tokens.
    tokens: RandomState,
    /// Number of requests and replies sent to each end point.
    sent: Mutex<HashMap<EndpointId, u64>>,
}

/// A measurement that waits for replies.
struct Waiting {
    /// The tunnel port and the address from which its replies come.
    from: (PortNo, IpAddr),
    replies: SyncSender<Probe>,
}

impl Probes {
    /// Starts a thread that handles the probes of `receiver` until its sender is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        datapath: Arc<dyn Datapath>,
        deployment: Arc<RwLock<Arc<Deployment>>>,
        receiver: Receiver<ReceivedProbe>,
    ) -> io::Result<Arc<Self>> {
        let (waiting, tokens) = (Mutex::default(), RandomState::new());
        let sent = Mutex::default();
        let probes = Arc::new(Self { datapath, deployment, waiting, tokens, sent });
        let shared = Arc::clone(&probes);
        std::thread::Builder::new()
            .name("probe".to_owned())
            .spawn(move || shared.serve(&receiver))?;
        Ok(probes)
    }

    fn serve(&self, receiver: &Receiver<ReceivedProbe>) {
        let mut listener = PmtuListener::default();
        let mut budget = (Instant::now(), REPLIES_PER_SECOND);
        for arrived in receiver.iter() {
            if arrived.probe.is_reply {
                let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let prober = waiting.get(&arrived.probe.token);
                // Only the probed host may reply.
                if let Some(prober) = prober.filter(|p| p.from == (arrived.port, arrived.source)) {
                    // Fails if the queue is full. The prober then retries the request.
                    let _ = prober.replies.try_send(arrived.probe);
                }
                continue;
            }
            if budget.0.elapsed() >= Duration::from_secs(1) {
                budget = (Instant::now(), REPLIES_PER_SECOND);
            }
            if budget.1 > 0 {
                budget.1 -= 1;
                self.reply(&arrived, &mut listener);
            }
        }
    }

    /// Replies to a request of another host.
    fn reply(&self, arrived: &ReceivedProbe, listener: &mut PmtuListener) {
        let deployment = self.deployment();
        let is_sender = |endpoint: &&EndpointConfig| {
            endpoint.remote == arrived.source
                && Placement::tunnel_port(endpoint.spec.tunnel) == arrived.port
        };
        let mut endpoints = deployment.config.underlay.endpoints.iter();
        let Some(endpoint) = endpoints.find(is_sender) else { return };
        let uplink = &deployment.config.uplink;
        // Regular probes do not ask for the MTUs of guests: reading them enters the guests'
        // namespaces, which is costly.
        let is_brief = arrived.probe.has_wrong_guest_mtu;
        let too_big = (!is_brief)
            .then(|| listener.too_big(uplink, endpoint.local, endpoint.remote))
            .flatten()
            .and_then(|too_big| Some((too_big.mtu, too_big.router?)));
        let (uplink_mtu, has_wrong_guest_mtu) =
            if is_brief { (0, false) } else { listener.local_mtus(&deployment) };
        let reply =
            Probe { is_reply: true, too_big, uplink_mtu, has_wrong_guest_mtu, ..arrived.probe };
        self.send(&deployment, endpoint, &reply, arrived.probe.reply_len.into());
    }

    /// Sends a probe frame of `len` bytes including its Ethernet header.
    fn send(&self, deployment: &Deployment, to: &EndpointConfig, probe: &Probe, len: usize) {
        let len = len.min(PacketBuf::MAX_FRAME);
        let packet = PacketBuf::from_bytes(&probe.emit(len));
        let key = TunnelKey { datapath: DatapathKey(0), ports: None };
        let actions = [Action::Encap { endpoint: to.id, key }];
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        *sent.entry(to.id).or_default() += 1;
        drop(sent);
        // Fails only when the datapath has stopped; then the request times out.
        let _ = self.datapath.execute(deployment.config.uplink_port, packet, Arc::new(actions));
    }

    /// Number of requests and replies sent to an end point.
    pub(super) fn sent_to(&self, endpoint: EndpointId) -> u64 {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.get(&endpoint).copied().unwrap_or_default()
    }

    pub(super) fn datapath(&self) -> &dyn Datapath {
        &*self.datapath
    }

    pub(super) fn deployment(&self) -> Arc<Deployment> {
        Arc::clone(&self.deployment.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Measures the path to a host of the network file. Takes less than ten seconds.
    ///
    /// # Errors
    /// No tunnel with end points and keys leads to a host of that name. The text lists the possible
    /// hosts.
    pub fn path(&self, host: &str) -> Result<PathFacts, String> {
        let deployment = self.deployment();
        let is_there =
            |endpoint: &&EndpointConfig| deployment.host_at(endpoint.remote) == Some(host);
        let endpoints = &deployment.config.underlay.endpoints;
        let usable = |endpoint: &&EndpointConfig| endpoint.spec.key || !is_gre(endpoint);
        let Some(endpoint) = endpoints.iter().filter(is_there).find(usable) else {
            let known: BTreeSet<_> = endpoints
                .iter()
                .filter_map(|endpoint| deployment.host_at(endpoint.remote))
                .collect();
            return Err(format!(
                "cannot measure the path to {host:?}: no tunnel with end points and keys leads \
                 there; use one of {}",
                list_names(&Vec::from_iter(known))
            ));
        };
        Ok(self.with_prober(&deployment, endpoint, |prober| prober.measure(host)))
    }

    /// Calls `measure` with a prober for one end point.
    pub(super) fn with_prober<T>(
        &self,
        deployment: &Deployment,
        endpoint: &EndpointConfig,
        measure: impl FnOnce(&mut PathProber<'_>) -> T,
    ) -> T {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let token = self.tokens.hash_one(COUNT.fetch_add(1, Ordering::Relaxed));
        let (sender, replies) = sync_channel(QUEUE);
        let from = (Placement::tunnel_port(endpoint.spec.tunnel), endpoint.remote);
        let waiting = Waiting { from, replies: sender };
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(token, waiting);
        let mut prober = PathProber::new(self, deployment, endpoint, token, replies);
        let measured = measure(&mut prober);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
        measured
    }
}

/// Whether the tunnel is GRE. Path probes need a tunnel key, which is optional in GRE.
pub(super) fn is_gre(endpoint: &EndpointConfig) -> bool {
    endpoint.spec.tunnel.carrier() == flow::Carrier::Gre
}

fn uplink_mtu(deployment: &Deployment) -> Option<u32> {
    let link = Netlink::open().and_then(|netlink| netlink.link(&deployment.config.uplink));
    link.ok().map(|link| link.mtu)
}

/// The MTUs of the interfaces of this host's guests; empty when they cannot be read.
fn guest_mtus(deployment: &Deployment) -> Vec<SwitchMtu> {
    let Deployment { network: Some(network), config, .. } = deployment else { return Vec::new() };
    let host = network.host(&config.host);
    host.and_then(|host| facts::mtu::read(network, host.index).ok()).unwrap_or_default()
}

/// Listens for ICMP "packet too big" messages of the underlay, and caches the MTUs of this host.
#[derive(Default)]
struct PmtuListener {
    /// One socket for every local address that has been used.
    sockets: HashMap<IpAddr, TooBigSocket>,
    /// The last message for each pair of local and remote address.
    messages: HashMap<(IpAddr, IpAddr), (PmtuReport, Instant)>,
    /// When the local MTUs were read, and the result of [`PmtuListener::local_mtus`].
    local: Option<(Instant, u16, bool)>,
}

impl PmtuListener {
    /// The MTU of the uplink, and whether the MTU of any guest's interface is wrong.
    fn local_mtus(&mut self, deployment: &Deployment) -> (u16, bool) {
        if let Some((_, uplink_mtu, has_wrong_guest_mtu)) =
            self.local.filter(|(read, ..)| read.elapsed() < LOCAL_MTU_AGE)
        {
            return (uplink_mtu, has_wrong_guest_mtu);
        }
        // The MTU field of a probe has 16 bits.
        let mtu = uplink_mtu(deployment).map_or(0, |mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
        let switches = guest_mtus(deployment);
        let mut places = switches.iter().flat_map(|switch| &switch.places);
        let has_wrong_guest_mtu = places.any(|place| place.is_of_a_guest() && place.is_wrong());
        self.local = Some((Instant::now(), mtu, has_wrong_guest_mtu));
        (mtu, has_wrong_guest_mtu)
    }

    /// The last "packet too big" message for packets from `local` to `remote`.
    fn too_big(&mut self, uplink: &str, local: IpAddr, remote: IpAddr) -> Option<PmtuReport> {
        let socket = match self.sockets.entry(local) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let device = Netlink::open().and_then(|netlink| netlink.index_of(uplink)).ok()?;
                place.insert(TooBigSocket::open(local, Some(device)).ok()?)
            }
        };
        while let Ok(Some((message, router))) = socket.recv_from() {
            let Some(mtu) = message.path_mtu() else { continue };
            let report = PmtuReport { mtu, router: Some(router) };
            self.messages.insert((message.local, message.remote), (report, Instant::now()));
        }
        self.messages.retain(|_, (_, received)| received.elapsed() < TOO_BIG_AGE);
        self.messages.get(&(local, remote)).map(|(report, _)| *report)
    }
}

/// The direction that a request measures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProbeDirection {
    Forward,
    Back,
}

/// One measurement of the path to one host.
pub(super) struct PathProber<'a> {
    probes: &'a Probes,
    deployment: &'a Deployment,
    endpoint: &'a EndpointConfig,
    token: u64,
    replies: Receiver<Probe>,
    /// The sequence number of the last request.
    number: u32,
    timeout: Duration,
    listener: PmtuListener,
    /// Requests ask for replies without MTUs.
    is_brief: bool,
    last_reply: Option<Probe>,
    /// The last "packet too big" message that the other host has received.
    reported_back: Option<PmtuReport>,
}

impl<'a> PathProber<'a> {
    fn new(
        probes: &'a Probes,
        deployment: &'a Deployment,
        endpoint: &'a EndpointConfig,
        token: u64,
        replies: Receiver<Probe>,
    ) -> Self {
        Self {
            probes,
            deployment,
            endpoint,
            token,
            replies,
            number: 0,
            timeout: FIRST_TIMEOUT,
            listener: PmtuListener::default(),
            is_brief: false,
            last_reply: None,
            reported_back: None,
        }
    }

    fn measure(&mut self, host: &str) -> PathFacts {
        let EndpointConfig { spec, local, remote, .. } = *self.endpoint;
        // Opens the ICMP socket before the first probe, so that no message is missed.
        self.too_big();
        let mut sent = Instant::now();
        let tries = (1..=MAX_TRIES).find(|_| {
            sent = Instant::now();
            !self.request(&[0], ProbeDirection::Forward).is_empty()
        });
        let rtt = sent.elapsed();
        self.timeout = (rtt * 4).clamp(MIN_TIMEOUT, MAX_TIMEOUT);
        let needed = spec.path_mtu_bytes;
        let mut facts = PathFacts {
            host: host.to_owned(),
            tunnel: spec.tunnel.name().to_owned(),
            local,
            remote,
            needed,
            overhead: overhead_bytes(
                spec.tunnel,
                self.deployment.family,
                &self.deployment.tunnel_options,
            ),
            tries,
            rtt_us: tries.and_then(|_| u64::try_from(rtt.as_micros()).ok()),
            forward: PathDirection::default(),
            back: PathDirection::default(),
            uplink: uplink_mtu(self.deployment)
                .map(|mtu| (self.deployment.config.uplink.clone(), mtu)),
            remote_uplink: None,
            remote_misfit: false,
            switches: guest_mtus(self.deployment),
        };
        if tries.is_some() {
            facts.forward.mtu = Some(self.longest(needed, ProbeDirection::Forward));
            facts.back.mtu = Some(self.longest(needed, ProbeDirection::Back));
            // The reply reports the ICMP messages that the other host received during the search.
            self.request(&[0], ProbeDirection::Back);
        }
        facts.forward.told = self.too_big().or_else(|| self.known_path_mtu());
        facts.back.told = self.reported_back;
        if let Some(reply) = self.last_reply {
            let remote = self.deployment.network.as_ref();
            let remote = remote.and_then(|network| network.host(host));
            let remote = remote.filter(|_| reply.uplink_mtu != 0);
            facts.remote_uplink = remote.map(|remote| (remote.uplink.clone(), reply.uplink_mtu));
            facts.remote_misfit = reply.has_wrong_guest_mtu;
        }
        facts
    }

    /// Whether an outer packet of `length` bytes arrives, and whether a short packet arrives.
    pub(super) fn arrives(&mut self, length: u16) -> (bool, bool) {
        self.is_brief = true;
        let (frame, short, sent) = (length.saturating_sub(self.overhead()), 0, Instant::now());
        if self.request(&[short], ProbeDirection::Forward).is_empty() {
            return (false, false);
        }
        self.timeout = (sent.elapsed() * 4).clamp(MIN_TIMEOUT, MAX_TIMEOUT);
        (!self.request(&[frame], ProbeDirection::Forward).is_empty(), true)
    }

    /// The length of the longest outer packet up to `limit` that reaches the other host, in bytes
    /// of IP packet.
    pub(super) fn longest_forward(&mut self, limit: u16) -> u16 {
        self.longest(limit, ProbeDirection::Forward)
    }

    /// The length of the longest outer packet up to `needed` that arrives, in bytes of IP packet.
    fn longest(&mut self, needed: u16, direction: ProbeDirection) -> u16 {
        let outer = self.overhead();
        let shortest = Probe::MIN_FRAME as u16 + outer;
        search(shortest, needed, |sizes| {
            let frames: Vec<u16> = sizes.iter().map(|size| size.saturating_sub(outer)).collect();
            let arrived = self.request(&frames, direction);
            arrived.into_iter().map(|frame| frame.saturating_add(outer)).collect()
        })
    }

    /// The bytes that the tunnel adds in front of a probe. The tunnel header of a probe carries no
    /// logical ports.
    fn overhead(&self) -> u16 {
        let tunnel = self.endpoint.spec.tunnel;
        let mut options: TunnelOptions = self.deployment.tunnel_options;
        options.of_mut(tunnel).logical_ports = false;
        let family = self.deployment.family;
        overhead_bytes(tunnel, family, &options).saturating_sub(ETHERNET_HEADER_LEN)
    }

    /// Sends requests of these frame lengths, or requests replies of these lengths. Retries once.
    /// Returns the lengths that arrived.
    fn request(&mut self, lens: &[u16], direction: ProbeDirection) -> Vec<u16> {
        let mut pending: HashMap<u32, u16> = HashMap::new();
        let mut arrived: Vec<u16> = Vec::new();
        for _ in 0..2 {
            for &len in lens.iter().filter(|len| !arrived.contains(len)) {
                self.number = self.number.wrapping_add(1);
                pending.insert(self.number, len);
                let (len, reply_len) = match direction {
                    ProbeDirection::Forward => (len, 0),
                    ProbeDirection::Back => (0, len),
                };
                let (token, number) = (self.token, self.number);
                let question = Probe::question(token, number, reply_len);
                let probe = Probe { has_wrong_guest_mtu: self.is_brief, ..question };
                self.probes.send(self.deployment, self.endpoint, &probe, len.into());
            }
            let end = Instant::now() + self.timeout;
            while arrived.len() < lens.len() {
                match self.replies.recv_timeout(end.saturating_duration_since(Instant::now())) {
                    Ok(reply) => {
                        self.reported_back = reply
                            .too_big
                            .map(|(mtu, router)| PmtuReport { mtu, router: Some(router) })
                            .or(self.reported_back);
                        self.last_reply = Some(reply);
                        let len = pending.remove(&reply.number);
                        arrived.extend(len.filter(|len| !arrived.contains(len)));
                    }
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            if arrived.len() == lens.len() {
                break;
            }
        }
        arrived
    }

    /// The last "packet too big" message that this host has received for the path.
    fn too_big(&mut self) -> Option<PmtuReport> {
        let EndpointConfig { local, remote, .. } = *self.endpoint;
        self.listener.too_big(&self.deployment.config.uplink, local, remote)
    }

    /// The path MTU that the datapath has learned, if it is below the configured one.
    fn known_path_mtu(&self) -> Option<PmtuReport> {
        let EndpointConfig { spec, local, remote, .. } = self.endpoint;
        let snapshot = self.probes.datapath.snapshot().ok()?;
        let known = snapshot.endpoints.iter().find(|known| {
            known.local == *local && known.remote == *remote && known.tunnel == spec.tunnel.name()
        })?;
        let router = known.path_mtu_report.and_then(|report| report.router);
        (known.path_mtu < spec.path_mtu_bytes).then_some(PmtuReport { mtu: known.path_mtu, router })
    }
}
