//! What the datapath does beside forwarding, on a thread of its own so that no frame waits for it: opens the devices of
//! ports, follows links, routes and neighbours, and tells the workers.

use super::counter_delta::CounterDelta;
use super::device::Mode;
use super::fast_path::{FastPath, PathMtu, PortRedirect, Punt, punt, veth, vxlan_gro};
use super::mailbox::{Mailbox, Request};
use super::path_mtu::PathMtus;
use super::port::Port;
use super::receive::Receiver;
use super::resolve::{self, Resolver, Whole};
use super::transmit::{Sender, SourcePorts};
use super::uplink::{UplinkNeeds, UplinkSockets};
use super::uplink_watch::{State, UplinkWatch};
use super::{Notice, SetupError, TICK};
use datapath::DatapathError;
use datapath::config::{Config, PortConfig, TunnelConfig, Underlay};
use flow::PortNo;
use netdev::epoll::{Epoll, Events, Waker};
use netdev::tap::Tap;
use netdev::{Error, Ifindex, KernelVersion, Link, Netlink};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const WAKER: u64 = 0;
const MONITOR: u64 = 1;
/// And those behind it: sockets that hear about paths.
const PATHS: u64 = 2;
/// From then on programs can give datagrams to sockets that share a port.
const ASSIGNS_TO_GROUPS: KernelVersion = KernelVersion::new(6, 6);

/// Programs in front of the datapath.
#[derive(Debug)]
struct Programs {
    config: Punt,
    /// The TAP, while it is there.
    tap: Option<Ifindex>,
    /// UDP super-packets can be handed over.
    udp_segmentation: bool,
    overruns: CounterDelta,
    /// Where sockets of VXLAN are, if a device of the kernel's has their port.
    redirect: Option<PortRedirect>,
    /// The device that receives frames to any address.
    promiscuous: Option<Ifindex>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) ports: BTreeMap<PortNo, Port>,
    pub(super) uplink: UplinkWatch,
    /// What is open.
    needs: UplinkNeeds,
    tunnels: Vec<TunnelConfig>,
    senders: Vec<Sender>,
    /// Those of each address.
    source_ports: SourcePorts,
    programs: Option<Programs>,
    netlink: Netlink,
    resolver: Resolver,
    paths: PathMtus,
    /// The sockets of `paths` are new, and nobody waits for them yet.
    new_paths: bool,
    /// What is to be open.
    underlay: Arc<Underlay>,
    workers: Vec<Mailbox>,
}

impl Control {
    pub(super) fn open(
        config: &Config,
        uplink: Ifindex,
        punt: Option<Punt>,
    ) -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        let programs = punt.map(Programs::new);
        let whole = if programs.is_some() { Whole::All } else { Whole::Stt };
        let resolver = Resolver::open(uplink, whole)?;
        let (base, count) = (config.entropy_base, config.entropy_ports.next_power_of_two());
        let first = u32::from(base);
        let paths = PathMtus::new(first..first + u32::from(count));
        let mut watch = UplinkWatch::new(config, uplink);
        watch.observe(Some(&netlink.link_by_index(uplink)?));
        let ports = config.ports.iter().map(|port| (port.port, Port::new(port.clone())));
        Ok(Self {
            ports: ports.collect(),
            uplink: watch,
            needs: UplinkNeeds::default(),
            tunnels: Vec::new(),
            senders: Vec::new(),
            source_ports: SourcePorts { base, count },
            programs,
            netlink,
            resolver,
            paths,
            new_paths: false,
            underlay: Arc::default(),
            workers: Vec::new(),
        })
    }

    /// Begins: everything that can be is open and resolved when this returns.
    ///
    /// # Errors
    /// Something of the underlay cannot be opened.
    pub(super) fn begin(
        &mut self,
        workers: Vec<Mailbox>,
        underlay: &Arc<Underlay>,
    ) -> Result<(), SetupError> {
        self.workers = workers;
        let punt_tap = self.open_punt_device()?;
        let uplink = self.netlink.link_by_index(self.uplink.ifindex)?;
        let has_gro_device = |tunnel: &TunnelConfig| tunnel.spec.tunnel.descriptor().has_gro_device;
        if !self.can_redirect() || !underlay.tunnels.iter().any(has_gro_device) {
            // A process that did may have been killed.
            remove_gro(&self.netlink);
        }
        self.set_underlay(underlay)?;
        self.resolver.begin(&underlay.endpoints);
        self.tell_resolved();
        if self.programs.is_some() {
            let ours = self.ports.values().filter_map(Port::veth_name).collect::<Vec<_>>();
            veth::remove_others(&ours)?;
        }
        // What programs hand over is lost unless the workers know its port and there is a device to hand it over by.
        let opened = self.open_devices();
        self.tell_programs(|programs| programs.punt_device(punt_tap));
        self.tell_programs(|programs| programs.uplink(Some(&uplink)));
        for (port, link) in opened {
            self.tell_programs(|programs| programs.port(port, link.as_ref()));
        }
        Ok(())
    }

    fn tell_programs(&self, tell: impl FnOnce(&dyn FastPath)) {
        if let Some(programs) = &self.programs {
            tell(&*programs.config.fast_path);
        }
    }

    /// Makes the TAP by which programs hand over, if it is not there; returns its number when it is new.
    fn open_punt_device(&mut self) -> Result<Option<Ifindex>, Error> {
        let Some(programs) = self.programs.as_mut().filter(|programs| programs.tap.is_none())
        else {
            return Ok(None);
        };
        let (queues, index) = punt::open(&programs.config.device, self.workers.len())?;
        programs.udp_segmentation = queues.iter().all(Tap::udp_segmentation);
        programs.tap = Some(index);
        programs.overruns = CounterDelta::default();
        for (worker, queue) in self.workers.iter().zip(queues) {
            // One that has ended needs none.
            let _ = worker.send(Request::PuntQueue(queue));
        }
        Ok(Some(index))
    }

    /// Makes the TAP anew when it is gone, and counts what it had no room for.
    fn check_punt_device(&mut self) {
        match self.open_punt_device() {
            Ok(None) => {}
            Ok(index) => self.tell_programs(|programs| programs.punt_device(index)),
            Err(error) => tracing::warn!("programs cannot hand over: {error}"),
        }
        let Some(programs) = &mut self.programs else { return };
        let tap = programs.tap.and_then(|tap| self.netlink.link_by_index(tap).ok());
        let lost = tap.map_or(0, |tap| programs.overruns.advance_to(tap.stats.tx_dropped));
        if let (1.., Some(worker)) = (lost, self.workers.first()) {
            // One that has ended counts nothing any more.
            let _ = worker.send(Request::Overrun(lost));
        }
    }

    pub(super) fn add_port(&mut self, config: PortConfig) -> Result<(), DatapathError> {
        let port = config.port;
        if self.ports.contains_key(&port) {
            return Err(DatapathError::PortTaken(port));
        }
        self.ports.insert(port, Port::new(config));
        self.open_port(port);
        Ok(())
    }

    pub(super) fn remove_port(&mut self, port: PortNo) -> Result<(), DatapathError> {
        if self.ports.remove(&port).is_none() {
            return Ok(());
        }
        self.tell_programs(|programs| programs.port(port, None));
        let remove = |worker: &Mailbox| worker.ask(|reply| Request::RemovePort(port, reply));
        self.workers.iter().try_for_each(remove)
    }

    /// Leaves the ports to the workers, which are to end: what becomes of the devices is no news any more.
    pub(super) fn forget_ports(&mut self) {
        self.ports.clear();
        if self.programs.as_ref().is_some_and(|programs| programs.redirect.is_some()) {
            remove_gro(&self.netlink);
        }
        if let Some(mut programs) = self.programs.take()
            && let Err(error) = programs.receive_tags(None, &self.netlink)
        {
            tracing::debug!("{error}");
        }
    }

    /// Goes over to other tunnels and end points. What is to be closed is closed first: something new may need its place.
    ///
    /// # Errors
    /// Something cannot be opened, or an end point cannot be; the rest is in place.
    pub(super) fn set_underlay(&mut self, underlay: &Arc<Underlay>) -> Result<(), SetupError> {
        for worker in &self.workers {
            let request = |reply| Request::Underlay(Arc::clone(underlay), reply);
            worker.ask(request)??;
        }
        self.tunnels.retain(|tunnel| underlay.tunnels.contains(tunnel));
        self.senders.retain(|sender| underlay.tunnels.iter().any(|tunnel| sender.is_for(tunnel)));
        self.stop_redirecting(underlay);
        self.uplink.require(underlay);
        self.resolver.follow_endpoints(&underlay.endpoints);
        self.underlay = Arc::clone(underlay);
        self.open_underlay()?;
        self.follow_paths();
        self.tell_resolved();
        Ok(())
    }

    /// Opens what is not open yet.
    ///
    /// # Errors
    /// Something cannot be opened.
    fn open_underlay(&mut self) -> Result<(), SetupError> {
        let needs = UplinkNeeds::of(&self.underlay);
        let (uplink, count) = (self.uplink.ifindex, self.workers.len());
        if needs != self.needs {
            let receives_tags = self.programs.is_none();
            let group = UplinkSockets::open_group(needs, uplink, count, receives_tags)?;
            for (worker, sockets) in self.workers.iter().zip(group) {
                worker.send(Request::Uplink(sockets))?;
            }
            self.needs = needs;
            if let Some(programs) = &mut self.programs {
                programs.receive_tags(needs.tags.then_some(uplink), &self.netlink)?;
            }
        }
        let underlay = Arc::clone(&self.underlay);
        for tunnel in &underlay.tunnels {
            if self.tunnels.contains(tunnel) {
                continue;
            }
            let punted = self.programs.is_some();
            let socket_port = self.redirect(tunnel);
            let receivers = Receiver::open_group(tunnel, uplink, count, punted, socket_port)?;
            let has_sender = self.senders.iter().any(|sender| sender.is_for(tunnel));
            let sender = if has_sender || tunnel.group.is_some() {
                None
            } else {
                Sender::open(tunnel, &self.source_ports)?
            };
            self.senders.extend(sender.clone());
            for (worker, receiver) in self.workers.iter().zip(receivers) {
                worker.send(Request::Tunnel(Box::new(receiver), sender.clone()))?;
            }
            self.tunnels.push(*tunnel);
        }
        if self.underlay.endpoints.iter().any(|endpoint| endpoint.remote.is_multicast()) {
            self.senders.iter().try_for_each(|sender| sender.reach_groups(uplink))?;
        }
        Ok(())
    }

    /// There are programs to lead datagrams to sockets at another port, and need not rewrite theirs, which the host's firewall may not let in.
    fn can_redirect(&self) -> bool {
        let assigns = || KernelVersion::running() >= Some(ASSIGNS_TO_GROUPS);
        self.programs.is_some() && (self.workers.len() == 1 || assigns())
    }

    /// The port at which the sockets of a tunnel are, if that is another than the tunnel's own.
    fn redirect(&mut self, tunnel: &TunnelConfig) -> Option<u16> {
        if !tunnel.spec.tunnel.descriptor().has_gro_device || !self.can_redirect() {
            return None;
        }
        let programs = self.programs.as_mut()?;
        let port = tunnel.spec.port;
        if let Some(redirect) = programs.redirect {
            return (redirect.tunnel_port == port).then_some(redirect.socket_port);
        }
        // One that is free now; the address may not be there yet, which whoever opens the sockets says.
        let socket = UdpSocket::bind((tunnel.address(), 0)).and_then(|it| it.local_addr()).ok()?;
        let redirect = PortRedirect { tunnel_port: port, socket_port: socket.port() };
        if let Err(error) = vxlan_gro::provide(&self.netlink, port) {
            tracing::debug!("segments out of VXLAN are not joined: {error}");
            return None;
        }
        if !programs.config.fast_path.redirect_vxlan(Some(redirect)) {
            remove_gro(&self.netlink);
            return None;
        }
        programs.redirect = Some(redirect);
        Some(redirect.socket_port)
    }

    /// The tunnel's port is nobody's any more when there is no such tunnel.
    fn stop_redirecting(&mut self, underlay: &Underlay) {
        let Some(programs) = &mut self.programs else { return };
        let is_for = |redirect: PortRedirect| {
            let is_led = |it: &TunnelConfig| {
                it.spec.tunnel.descriptor().has_gro_device && it.spec.port == redirect.tunnel_port
            };
            underlay.tunnels.iter().any(is_led)
        };
        if programs.redirect.is_some_and(|redirect| !is_for(redirect)) {
            programs.redirect = None;
            programs.config.fast_path.redirect_vxlan(None);
            remove_gro(&self.netlink);
        }
    }

    fn tell(&self, request: impl Fn() -> Request) {
        for worker in &self.workers {
            // One that has ended needs to be told nothing.
            let _ = worker.send(request());
        }
    }

    fn tell_resolved(&mut self) {
        let news: Arc<[_]> = self.resolver.news().into();
        if !news.is_empty() {
            self.tell(|| Request::Resolved(Arc::clone(&news)));
            self.tell_programs(|programs| programs.resolved(&news));
        }
    }

    /// Listens for what is said about the paths to the end points that there are now.
    fn follow_paths(&mut self) {
        if let Err(error) = self.paths.follow(&self.underlay.endpoints, self.uplink.ifindex) {
            tracing::warn!("cannot hear of narrow paths: {error}");
        }
        self.new_paths = true;
        // The end points may be new to the workers.
        self.tell_paths(self.paths.all());
    }

    fn tell_paths(&self, news: Vec<PathMtu>) {
        if !news.is_empty() {
            let news: Arc<[_]> = news.into();
            self.tell(|| Request::PathMtus(Arc::clone(&news)));
            self.tell_programs(|programs| programs.path_mtus(&news));
        }
    }

    fn open_ports(&mut self) {
        for (port, link) in self.open_devices() {
            self.tell_programs(|programs| programs.port(port, link.as_ref()));
        }
    }

    /// Opens the device of a port if it is not open and can be, and has programs stand at it.
    fn open_port(&mut self, port: PortNo) {
        if let Some(link) = self.open_device(port) {
            self.tell_programs(|programs| programs.port(port, link.as_ref()));
        }
    }

    /// The ports whose devices were not open and are now; programs are to be told.
    fn open_devices(&mut self) -> Vec<(PortNo, Option<Link>)> {
        let ports: Vec<PortNo> = self.ports.keys().copied().collect();
        ports.into_iter().filter_map(|port| Some((port, self.open_device(port)?))).collect()
    }

    /// Opens the device of a port for the workers; `None` when it is open, or cannot be.
    fn open_device(&mut self, port: PortNo) -> Option<Option<Link>> {
        let count = self.workers.len();
        let mode = self.programs.as_ref().map_or(Mode::Receive, |programs| Mode::SendOnly {
            udp_segmentation: programs.udp_segmentation,
        });
        let opened = self.ports.get_mut(&port).and_then(|port| port.try_open(count, mode));
        let (queues, link) = opened?;
        for (worker, device) in self.workers.iter().zip(queues) {
            // One that has ended needs none.
            let _ = worker.send(Request::Plug(port, device));
        }
        Some(link)
    }

    fn tick(&mut self) {
        if self.uplink.state() == State::Gone
            && let Err(error) = self.find_uplink()
        {
            tracing::debug!("uplink: {error}");
        }
        self.resolver.tick();
        self.tell_resolved();
        let forgotten = self.paths.expire(Instant::now());
        self.tell_paths(forgotten);
        self.check_punt_device();
        self.open_ports();
    }

    /// Looks for the uplink when it is gone; what was bound to it is opened anew.
    ///
    /// # Errors
    /// It is not there, or goes again in the meantime: the next tick tries again.
    fn find_uplink(&mut self) -> Result<(), SetupError> {
        let link = self.netlink.link(&self.uplink.device)?;
        for worker in &self.workers {
            worker.ask(Request::CloseUnderlay)?;
        }
        self.uplink.ifindex = link.index;
        self.senders.clear();
        self.needs = UplinkNeeds::default();
        self.tunnels.clear();
        self.open_underlay()?;
        self.resolver.follow(link.index, link.mac);
        self.resolver.refresh();
        // Last: with another state than Gone, nothing is tried again.
        self.uplink.observe(Some(&link));
        self.tell_programs(|programs| programs.uplink(Some(&link)));
        self.follow_paths();
        Ok(())
    }

    /// The device of a port is gone, as a worker has found out.
    fn gone(&mut self, number: PortNo, why: String) {
        if let Some(port) = self.ports.get_mut(&number)
            && port.closed(why)
        {
            self.tell_programs(|programs| programs.port(number, None));
            self.tell(|| Request::Unplug(number));
        }
    }

    /// Takes over what the kernel says has changed.
    fn follow(&mut self) {
        let mut news = self.resolver.drain();
        if news.all {
            news.links.insert(self.uplink.ifindex);
            news.links.extend(self.ports.values().filter_map(Port::ifindex));
            news.links.extend(self.programs.as_ref().and_then(|programs| programs.tap));
        }
        for index in news.links {
            self.read_link(index);
        }
        self.tell_resolved();
    }

    /// Reads a link that has changed, if it is one of ours.
    fn read_link(&mut self, index: Ifindex) {
        let is_uplink = index == self.uplink.ifindex;
        let numbers = self.ports.iter().filter(|(_, port)| port.ifindex() == Some(index));
        let ports: Vec<PortNo> = numbers.map(|(number, _)| *number).collect();
        let tap = self.programs.as_ref().and_then(|programs| programs.tap);
        let is_tap = tap == Some(index);
        if !is_uplink && !is_tap && ports.is_empty() {
            return;
        }
        let link = match self.netlink.link_by_index(index) {
            Ok(link) => Some(link),
            Err(error) if error.is_not_found() => None,
            Err(error) => return tracing::warn!("cannot follow a link: {error}"),
        };
        for port in ports {
            self.port_changed(port, link.as_ref());
        }
        if is_tap && link.is_none() {
            self.punt_device_gone();
        }
        if is_uplink {
            self.uplink.observe(link.as_ref());
            self.tell_programs(|programs| programs.uplink(link.as_ref()));
            if let Some(link) = link {
                self.resolver.follow(link.index, link.mac);
            }
            self.resolver.refresh();
        }
    }

    /// The TAP by which programs hand over is gone, by somebody's mistake; the next tick makes another.
    fn punt_device_gone(&mut self) {
        let Some(programs) = &mut self.programs else { return };
        tracing::warn!(device = %programs.config.device, "device is gone, will make it anew");
        programs.tap = None;
        self.tell_programs(|programs| programs.punt_device(None));
    }

    fn port_changed(&mut self, number: PortNo, link: Option<&Link>) {
        let Some(port) = self.ports.get_mut(&number) else { return };
        match link {
            Some(link) => {
                port.observe(link);
                self.tell_programs(|programs| programs.port(number, Some(link)));
            }
            None => self.gone(number, "the device is gone".to_owned()),
        }
    }
}

/// Without it, nothing is joined; with it, nobody else can have the port.
fn remove_gro(netlink: &Netlink) {
    if let Err(error) = vxlan_gro::remove(netlink) {
        tracing::warn!("the device that has the port of VXLAN stays: {error}");
    }
}

impl Programs {
    fn new(config: Punt) -> Self {
        let (tap, overruns) = (None, CounterDelta::default());
        Self { config, tap, udp_segmentation: false, overruns, redirect: None, promiscuous: None }
    }

    /// Tagged frames are received by this uplink: they are for guests, and carry the guests' MAC addresses. So programs receive
    /// them even when the process is killed.
    fn receive_tags(&mut self, uplink: Option<Ifindex>, netlink: &Netlink) -> Result<(), Error> {
        if let Some(before) = self.promiscuous.take().filter(|before| Some(*before) != uplink) {
            match netlink.set_promiscuous(before, false) {
                Err(error) if error.is_not_found() => {}
                result => result?,
            }
        }
        if let Some(index) = uplink {
            netlink.set_promiscuous(index, true)?;
            self.promiscuous = Some(index);
        }
        Ok(())
    }
}

/// The control thread's loop; it ends when `notices` has no sender any more.
pub(super) fn run(
    control: &Mutex<Control>,
    notices: &mpsc::Receiver<Notice>,
    waker: &Waker,
) -> Result<(), Error> {
    let epoll = Epoll::new()?;
    epoll.add(waker.as_fd(), WAKER)?;
    epoll.add(lock(control).resolver.as_fd(), MONITOR)?;
    let mut events = Events::new();
    let (mut next_tick, mut pause) = (Instant::now() + TICK, TICK);
    loop {
        let left = next_tick.saturating_duration_since(Instant::now());
        epoll.wait(&mut events, Some(left.min(pause)))?;
        let mut control = lock(control);
        for token in events.tokens() {
            match token {
                MONITOR => control.follow(),
                WAKER => drop(waker.clear()),
                paths => {
                    let number = (paths - PATHS) as usize;
                    let news = control.paths.receive(number, Instant::now());
                    control.tell_paths(news);
                }
            }
        }
        loop {
            match notices.try_recv() {
                Ok(Notice::PortGone(port, why)) => control.gone(port, why),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
        }
        if std::mem::take(&mut control.new_paths) {
            for (number, socket) in control.paths.sockets() {
                epoll.add(socket.as_fd(), PATHS + number as u64)?;
            }
        }
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + TICK;
            control.tick();
        } else if events.is_empty() {
            control.resolver.go_on();
            control.tell_resolved();
        }
        pause = if control.resolver.is_behind() { resolve::PAUSE } else { TICK };
    }
}

pub(super) fn lock(control: &Mutex<Control>) -> MutexGuard<'_, Control> {
    // What a panic leaves behind here is read anew at the next tick.
    control.lock().unwrap_or_else(PoisonError::into_inner)
}
