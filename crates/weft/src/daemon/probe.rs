//! Finds out how long packets may be on the way to another host, and answers the hosts that do the same.
//!
//! Questions and answers are frames of the hosts themselves inside the tunnel ([`switch::probe`]). A question of any length has a
//! short answer, and a short question may ask for an answer of any length: so both directions are tried, each for itself.

use super::deployed::Deployed;
use datapath::Datapath;
use datapath::config::EndpointConfig;
use doctor::facts::{self, SwitchMtu};
use doctor::path::{PathFacts, Told, Way, search};
use flow::{Action, DatapathKey, TunnelKey};
use netdev::Netlink;
use netdev::icmp::TooBigSocket;
use network::{Placement, TunnelOptions, overhead_bytes};
use packet::PacketBuf;
use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use switch::probe::{Arrived, Probe};

/// Probes that wait for their turn.
pub const QUEUE: usize = 256;
/// Answers in a second: whoever asks for long ones gets no more.
const ANSWERS_PER_SECOND: u32 = 1_000;
/// How long what a router said is told on.
const TOLD_AGE: Duration = Duration::from_secs(30);
/// How long what this host has looked up about itself is told on.
const OWN_AGE: Duration = Duration::from_secs(1);
/// How often the first question is asked, and how long its answer is waited for.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(300);
/// Bounds of how long the others' are.
const WAITS: (Duration, Duration) = (Duration::from_millis(60), Duration::from_millis(300));
const ETHERNET: u16 = 14;

/// Both sides of probing on one host.
pub struct Probes {
    datapath: Arc<dyn Datapath>,
    in_use: Arc<RwLock<Arc<Deployed>>>,
    /// Who waits for answers, by token.
    waiting: Mutex<HashMap<u64, SyncSender<Probe>>>,
}

impl Probes {
    /// Takes probes from `receiver`, on a thread of its own, as long as somebody sends them there.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(
        datapath: Arc<dyn Datapath>,
        in_use: Arc<RwLock<Arc<Deployed>>>,
        receiver: Receiver<Arrived>,
    ) -> io::Result<Arc<Self>> {
        let probes = Arc::new(Self { datapath, in_use, waiting: Mutex::default() });
        let shared = Arc::clone(&probes);
        std::thread::Builder::new()
            .name("probe".to_owned())
            .spawn(move || shared.serve(&receiver))?;
        Ok(probes)
    }

    fn serve(&self, receiver: &Receiver<Arrived>) {
        let mut ears = Ears::default();
        let mut budget = (Instant::now(), ANSWERS_PER_SECOND);
        for arrived in receiver.iter() {
            if arrived.probe.is_reply {
                let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(asker) = waiting.get(&arrived.probe.token) {
                    // Whoever does not take it asks again.
                    let _ = asker.try_send(arrived.probe);
                }
                continue;
            }
            if budget.0.elapsed() >= Duration::from_secs(1) {
                budget = (Instant::now(), ANSWERS_PER_SECOND);
            }
            if budget.1 > 0 {
                budget.1 -= 1;
                self.answer(&arrived, &mut ears);
            }
        }
    }

    /// Answers a question of another host.
    fn answer(&self, arrived: &Arrived, ears: &mut Ears) {
        let in_use = self.in_use();
        let is_asker = |endpoint: &&EndpointConfig| {
            endpoint.remote == arrived.source
                && Placement::tunnel_port(endpoint.spec.tunnel) == arrived.port
        };
        let Some(endpoint) = in_use.config.underlay.endpoints.iter().find(is_asker) else { return };
        let told = ears.told(&in_use.config.uplink, endpoint.local, endpoint.remote);
        let told = told.and_then(|told| Some((told.mtu, told.router?)));
        let (uplink_mtu, has_misfit) = ears.own(&in_use);
        let reply = Probe { is_reply: true, told, uplink_mtu, has_misfit, ..arrived.probe };
        self.send(&in_use, endpoint, &reply, arrived.probe.reply_len.into());
    }

    /// Sends a probe of `len` bytes, from its Ethernet header on.
    fn send(&self, in_use: &Deployed, to: &EndpointConfig, probe: &Probe, len: usize) {
        // The datapath has no longer ones.
        let len = len.min(PacketBuf::MAX_FRAME);
        let packet = PacketBuf::from_bytes(&probe.emit(len));
        let key = TunnelKey { datapath: DatapathKey(0), ports: None };
        let actions = [Action::Encap { endpoint: to.id, key }];
        // When the datapath has ended, nothing is answered.
        let _ = self.datapath.execute(in_use.config.uplink_port, packet, Arc::new(actions));
    }

    fn in_use(&self) -> Arc<Deployed> {
        Arc::clone(&self.in_use.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Finds out what the way to the host of that name carries. Takes less than ten seconds.
    ///
    /// # Errors
    /// A sentence: there is no such host, or no tunnel with end points leads there.
    pub fn path(&self, host: &str) -> Result<PathFacts, String> {
        static TOKENS: AtomicU64 = AtomicU64::new(0);
        let in_use = self.in_use();
        let is_there = |endpoint: &&EndpointConfig| in_use.host_at(endpoint.remote) == Some(host);
        let endpoints = &in_use.config.underlay.endpoints;
        let usable = |endpoint: &&EndpointConfig| endpoint.spec.key || !is_gre(endpoint);
        let Some(endpoint) = endpoints.iter().filter(is_there).find(usable) else {
            let known: HashSet<_> =
                endpoints.iter().filter_map(|endpoint| in_use.host_at(endpoint.remote)).collect();
            let known: Vec<_> = known.into_iter().collect();
            return Err(format!(
                "no tunnel with end points and keys leads from here to {host:?}; there are some to {}",
                super::deployed::enumerate(&known)
            ));
        };
        let salt = u64::from(std::process::id()) << 32;
        let token = salt | TOKENS.fetch_add(1, Ordering::Relaxed);
        let (sender, replies) = sync_channel(QUEUE);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(token, sender);
        let mut asker = Asker::new(self, &in_use, endpoint, token, replies);
        let facts = asker.find(host);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
        Ok(facts)
    }
}

fn is_gre(endpoint: &EndpointConfig) -> bool {
    endpoint.spec.tunnel == flow::TunnelType::Gre
}

fn uplink_mtu(in_use: &Deployed) -> Option<u32> {
    let link = Netlink::open().and_then(|netlink| netlink.link(&in_use.config.uplink));
    link.ok().map(|link| link.mtu)
}

/// Where the MTU has to be right on this host; nothing where that could not be looked at.
fn mtu_places(in_use: &Deployed) -> Vec<SwitchMtu> {
    let host = in_use.network.host(&in_use.config.host);
    host.and_then(|host| facts::mtu::read(&in_use.network, host.index).ok()).unwrap_or_default()
}

/// What routers have said, heard by whoever has asked for it once.
#[derive(Default)]
struct Ears {
    sockets: HashMap<IpAddr, TooBigSocket>,
    said: HashMap<(IpAddr, IpAddr), (Told, Instant)>,
    /// What this host has looked up about itself, and when.
    own: Option<(Instant, u16, bool)>,
}

impl Ears {
    /// The MTU of this host's uplink, and whether that of an interface of a guest does not fit.
    fn own(&mut self, in_use: &Deployed) -> (u16, bool) {
        if let Some((_, uplink_mtu, has_misfit)) =
            self.own.filter(|(looked, ..)| looked.elapsed() < OWN_AGE)
        {
            return (uplink_mtu, has_misfit);
        }
        // Of the longest ones 65,535 bytes are told.
        let mtu = uplink_mtu(in_use).map_or(0, |mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
        let switches = mtu_places(in_use);
        let mut places = switches.iter().flat_map(|switch| &switch.places);
        let has_misfit = places.any(|place| place.is_of_a_guest() && place.is_wrong());
        self.own = Some((Instant::now(), mtu, has_misfit));
        (mtu, has_misfit)
    }

    /// What was said last about the way from one address to another.
    fn told(&mut self, uplink: &str, local: IpAddr, remote: IpAddr) -> Option<Told> {
        let socket = match self.sockets.entry(local) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let device = Netlink::open().and_then(|netlink| netlink.index_of(uplink)).ok()?;
                place.insert(TooBigSocket::open(local, Some(device)).ok()?)
            }
        };
        while let Ok(Some((message, router))) = socket.recv_from() {
            let told = Told { mtu: message.mtu, router: Some(router) };
            self.said.insert((message.local, message.remote), (told, Instant::now()));
        }
        self.said.retain(|_, (_, heard)| heard.elapsed() < TOLD_AGE);
        self.said.get(&(local, remote)).map(|(told, _)| *told)
    }
}

/// Which way is tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Back,
}

/// Whoever asks.
struct Asker<'a> {
    probes: &'a Probes,
    in_use: &'a Deployed,
    endpoint: &'a EndpointConfig,
    token: u64,
    replies: Receiver<Probe>,
    number: u32,
    wait: Duration,
    ears: Ears,
    /// The last answer.
    answer: Option<Probe>,
    /// What the other host was told about the way back.
    told_back: Option<Told>,
}

impl<'a> Asker<'a> {
    fn new(
        probes: &'a Probes,
        in_use: &'a Deployed,
        endpoint: &'a EndpointConfig,
        token: u64,
        replies: Receiver<Probe>,
    ) -> Self {
        let (ears, wait) = (Ears::default(), FIRST_WAIT);
        let (answer, told_back) = (None, None);
        Self { probes, in_use, endpoint, token, replies, number: 0, wait, ears, answer, told_back }
    }

    fn find(&mut self, host: &str) -> PathFacts {
        let EndpointConfig { spec, local, remote, .. } = *self.endpoint;
        // From now on routers are heard.
        self.told();
        let begun = Instant::now();
        let mut asked = begun;
        let tries = (1..=TRIES).find(|_| {
            asked = Instant::now();
            !self.ask(&[0], Direction::Forward).is_empty()
        });
        let rtt = asked.elapsed();
        self.wait = (rtt * 4).clamp(WAITS.0, WAITS.1);
        let needed = spec.path_mtu_bytes;
        let mut facts = PathFacts {
            host: host.to_owned(),
            tunnel: spec.tunnel.name().to_owned(),
            local,
            remote,
            needed,
            overhead: self.in_use.network.overhead_bytes(spec.tunnel),
            tries,
            rtt_us: tries.and_then(|_| u64::try_from(rtt.as_micros()).ok()),
            forward: Way::default(),
            back: Way::default(),
            uplink: uplink_mtu(self.in_use).map(|mtu| (self.in_use.config.uplink.clone(), mtu)),
            remote_uplink: None,
            remote_misfit: false,
            switches: mtu_places(self.in_use),
        };
        if tries.is_some() {
            facts.forward.mtu = Some(self.longest(needed, Direction::Forward));
            facts.back.mtu = Some(self.longest(needed, Direction::Back));
            // Both sides have heard by now what there was to hear.
            self.ask(&[0], Direction::Back);
        }
        facts.forward.told = self.told().or_else(|| self.learnt());
        facts.back.told = self.told_back;
        if let Some(answer) = self.answer {
            let there = self.in_use.network.host(host).filter(|_| answer.uplink_mtu != 0);
            facts.remote_uplink = there.map(|there| (there.uplink.clone(), answer.uplink_mtu));
            facts.remote_misfit = answer.has_misfit;
        }
        facts
    }

    /// The longest outer packet that gets through.
    fn longest(&mut self, needed: u16, direction: Direction) -> u16 {
        let outer = self.outer();
        let shortest = Probe::MIN_FRAME as u16 + outer;
        search(shortest, needed, |sizes| {
            let frames: Vec<u16> = sizes.iter().map(|size| size.saturating_sub(outer)).collect();
            let arrived = self.ask(&frames, direction);
            arrived.into_iter().map(|frame| frame.saturating_add(outer)).collect()
        })
    }

    /// What a tunnel without logical ports puts in front of a frame.
    fn outer(&self) -> u16 {
        let mut options: TunnelOptions = *self.in_use.network.options();
        options.geneve.logical_ports = false;
        let (tunnel, family) = (self.endpoint.spec.tunnel, self.in_use.network.underlay_family());
        overhead_bytes(tunnel, family, &options).saturating_sub(ETHERNET)
    }

    /// Asks with frames of these lengths, or for such answers, twice; returns the lengths that arrived.
    fn ask(&mut self, lens: &[u16], direction: Direction) -> Vec<u16> {
        let mut open: HashMap<u32, u16> = HashMap::new();
        let mut arrived: Vec<u16> = Vec::new();
        for _ in 0..2 {
            for &len in lens.iter().filter(|len| !arrived.contains(len)) {
                self.number = self.number.wrapping_add(1);
                open.insert(self.number, len);
                let (len, reply_len) = match direction {
                    Direction::Forward => (len, 0),
                    Direction::Back => (0, len),
                };
                let (token, number) = (self.token, self.number);
                let probe = Probe::question(token, number, reply_len);
                self.probes.send(self.in_use, self.endpoint, &probe, len.into());
            }
            let end = Instant::now() + self.wait;
            while arrived.len() < lens.len() {
                match self.replies.recv_timeout(end.saturating_duration_since(Instant::now())) {
                    Ok(reply) => {
                        self.told_back = reply
                            .told
                            .map(|(mtu, router)| Told { mtu, router: Some(router) })
                            .or(self.told_back);
                        self.answer = Some(reply);
                        let len = open.remove(&reply.number);
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

    /// What a router has said to this host while it was asking.
    fn told(&mut self) -> Option<Told> {
        let EndpointConfig { local, remote, .. } = *self.endpoint;
        self.ears.told(&self.in_use.config.uplink, local, remote)
    }

    /// What the datapath has heard before.
    fn learnt(&self) -> Option<Told> {
        let EndpointConfig { spec, local, remote, .. } = self.endpoint;
        let snapshot = self.probes.datapath.snapshot().ok()?;
        let known = snapshot.endpoints.iter().find(|known| {
            known.local == *local && known.remote == *remote && known.tunnel == spec.tunnel.name()
        })?;
        (known.path_mtu < spec.path_mtu_bytes).then_some(Told { mtu: known.path_mtu, router: None })
    }
}
