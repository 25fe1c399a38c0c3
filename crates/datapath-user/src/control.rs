//! The control thread: opens devices and sockets, follows links, routes and neighbours, and informs
//! the workers. It is a thread of its own, so that no frame waits for it.

use super::counter_delta::CounterDelta;
use super::device::DeviceMode;
use super::device_closer::DeviceCloser;
use super::fast_path::punt_reader::PuntReader;
use super::fast_path::{FastPath, PathMtu, PortRedirect, Punt, punt, veth, vxlan_gro};
use super::log_meter::{LogMeters, Suppressed};
use super::mailbox::{Mailbox, Request};
use super::path_mtu::PathMtuDiscovery;
use super::port::Port;
use super::punting_programs::PuntingPrograms;
use super::receive::Receiver;
use super::resolve::{self, ResolveScope, Resolver};
use super::transmit::{Sender, SourcePorts};
use super::upcall_queue::UpcallQueues;
use super::uplink::{UplinkNeeds, UplinkSockets};
use super::uplink_watch::{UplinkState, UplinkWatch};
use super::{SetupError, TICK, WorkerEvent};
use datapath::DatapathError;
use datapath::config::{Config, PortConfig, PortPeer, TunnelConfig, Underlay};
use flow::{EndpointId, PortNo};
use netdev::epoll::{Epoll, EpollEvents, Waker};
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
/// The first token of the sockets that receive ICMP errors.
const ICMP: u64 = 2;
/// The first kernel whose `bpf_sk_assign` accepts sockets of a `SO_REUSEPORT` group.
const ASSIGNS_TO_REUSEPORT_GROUPS: KernelVersion = KernelVersion::new(6, 6);

/// The state of the control thread. Other threads lock it to change it.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) ports: BTreeMap<PortNo, Port>,
    pub(super) uplink: UplinkWatch,
    /// The uses of the uplink for which sockets are open.
    needs: UplinkNeeds,
    tunnels: Vec<TunnelConfig>,
    senders: Vec<Sender>,
    /// The range of outer source ports of each local address.
    source_ports: SourcePorts,
    programs: Option<PuntingPrograms>,
    netlink: Netlink,
    resolver: Resolver,
    pub(super) path_mtus: PathMtuDiscovery,
    /// The sockets of `path_mtus` are new and must be added to epoll.
    has_new_icmp_sockets: bool,
    /// The configured underlay.
    underlay: Arc<Underlay>,
    workers: Vec<Mailbox>,
    closer: DeviceCloser,
    upcalls: Arc<UpcallQueues>,
    pub(super) log_meters: Arc<LogMeters>,
}

impl Control {
    pub(super) fn open(
        config: &Config,
        uplink: Ifindex,
        punt: Option<Punt>,
        closer: DeviceCloser,
        upcalls: Arc<UpcallQueues>,
    ) -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        let programs = punt.map(PuntingPrograms::new);
        let scope = if programs.is_some() { ResolveScope::All } else { ResolveScope::Stt };
        let resolver = Resolver::open(uplink, scope)?;
        let (base, count) = (config.entropy_base, config.entropy_ports.next_power_of_two());
        let first = u32::from(base);
        let path_mtus = PathMtuDiscovery::new(first..first + u32::from(count));
        let mut watch = UplinkWatch::new(config, uplink);
        watch.observe(Some(&netlink.link_by_index(uplink)?));
        for port in &config.ports {
            upcalls.budgets.add(port.port, port.peer != PortPeer::Network);
        }
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
            path_mtus,
            has_new_icmp_sockets: false,
            underlay: Arc::default(),
            workers: Vec::new(),
            closer,
            upcalls,
            log_meters: Arc::new(LogMeters::new(Instant::now())),
        })
    }

    /// Opens everything that can be opened, and resolves next hops.
    ///
    /// # Errors
    /// A socket of the underlay cannot be opened.
    pub(super) fn start(
        &mut self,
        workers: Vec<Mailbox>,
        underlay: &Arc<Underlay>,
    ) -> Result<(), SetupError> {
        self.workers = workers;
        let punt_device = self.open_punt_device()?;
        let uplink = self.netlink.link_by_index(self.uplink.ifindex)?;
        let has_gro_device = |tunnel: &TunnelConfig| tunnel.spec.tunnel.descriptor().has_gro_device;
        if !self.can_redirect() || !underlay.tunnels.iter().any(has_gro_device) {
            // A killed process may have left the device.
            remove_vxlan_gro(&self.netlink);
        }
        self.set_underlay(underlay)?;
        self.resolver.start(&underlay.endpoints);
        self.publish_resolved();
        if self.programs.is_some() {
            let ours = self.ports.values().filter_map(Port::veth_name).collect::<Vec<_>>();
            veth::remove_others(&ours)?;
        }
        // Report ports to the programs only after the workers know them and the punt TAP exists:
        // otherwise punted packets would be lost.
        let opened = self.open_devices();
        self.with_programs(|programs| programs.punt_device(punt_device));
        self.uplink_changed(Some(&uplink));
        for (port, link) in opened {
            self.with_programs(|programs| programs.port(port, link.as_ref()));
        }
        Ok(())
    }

    fn with_programs(&self, tell: impl FnOnce(&dyn FastPath)) {
        if let Some(programs) = &self.programs {
            tell(&*programs.punt.fast_path);
        }
    }

    /// Makes the punt TAP if it does not exist; returns the index of a new one.
    fn open_punt_device(&mut self) -> Result<Option<Ifindex>, Error> {
        let Some(programs) = self.programs.as_mut().filter(|programs| programs.tap.is_none())
        else {
            return Ok(None);
        };
        let (queues, index) = punt::open(&programs.punt.device, self.workers.len())?;
        programs.udp_segmentation = queues.iter().all(Tap::udp_segmentation);
        programs.tap = Some(index);
        programs.overruns = CounterDelta::default();
        let readers = PuntReader::group(queues, &programs.punt.fast_path);
        for (worker, reader) in self.workers.iter().zip(readers) {
            // Fails only for a worker that has ended.
            let _ = worker.send(Request::PuntQueue(reader));
        }
        Ok(Some(index))
    }

    /// Makes the punt TAP again if it is gone, and counts the frames that it dropped.
    fn check_punt_device(&mut self) {
        match self.open_punt_device() {
            Ok(None) => {}
            Ok(index) => self.with_programs(|programs| programs.punt_device(index)),
            Err(error) => {
                messages::log!(
                    PUNT_TAP_NOT_MADE,
                    "cannot make the TAP for punted packets, will retry: {error}"
                )
            }
        }
        let Some(programs) = &mut self.programs else { return };
        let tap = programs.tap.and_then(|tap| self.netlink.link_by_index(tap).ok());
        let lost = tap.map_or(0, |tap| programs.overruns.advance_to(tap.stats.tx_dropped));
        if let (1.., Some(worker)) = (lost, self.workers.first()) {
            // Fails only for a worker that has ended.
            let _ = worker.send(Request::Overrun(lost));
        }
    }

    pub(super) fn add_port(&mut self, config: PortConfig) -> Result<(), DatapathError> {
        let port = config.port;
        if self.ports.contains_key(&port) {
            return Err(DatapathError::PortTaken(port));
        }
        self.upcalls.budgets.add(port, config.peer != PortPeer::Network);
        self.ports.insert(port, Port::new(config));
        self.open_port(port);
        Ok(())
    }

    pub(super) fn remove_port(&mut self, port: PortNo) -> Result<(), DatapathError> {
        if self.ports.remove(&port).is_none() {
            return Ok(());
        }
        self.with_programs(|programs| programs.port(port, None));
        let closed = self.close_port(port);
        self.upcalls.forget(port);
        closed
    }

    /// Has the workers forget a port, and closes its device.
    fn close_port(&self, port: PortNo) -> Result<(), DatapathError> {
        for worker in &self.workers {
            if let Some(device) = worker.ask(|reply| Request::RemovePort(port, reply))? {
                self.closer.close(device)?;
            }
        }
        Ok(())
    }

    /// Forgets the ports because the workers will end, so that closed devices are not reported.
    pub(super) fn forget_ports(&mut self) {
        self.ports.clear();
        if self.programs.as_ref().is_some_and(|programs| programs.redirect.is_some()) {
            remove_vxlan_gro(&self.netlink);
        }
        if let Some(mut programs) = self.programs.take()
            && let Err(error) = programs.receive_tags(None, &self.netlink)
        {
            messages::log!(TAG_PROGRAM_LEFT, "{error}");
        }
    }

    /// Replaces tunnels and end points. Old sockets are closed first, because new ones may need
    /// their ports.
    ///
    /// # Errors
    /// A socket cannot be opened, or an end point is invalid; the rest is in place.
    pub(super) fn set_underlay(&mut self, underlay: &Arc<Underlay>) -> Result<(), SetupError> {
        for worker in &self.workers {
            let request = |reply| Request::Underlay(Arc::clone(underlay), reply);
            worker.ask(request)??;
        }
        self.tunnels.retain(|tunnel| underlay.tunnels.contains(tunnel));
        self.senders.retain(|sender| underlay.tunnels.iter().any(|tunnel| sender.is_for(tunnel)));
        self.stop_redirecting(underlay);
        self.uplink.require(underlay);
        self.resolver.follow_endpoints(underlay);
        self.underlay = Arc::clone(underlay);
        self.open_underlay()?;
        self.discover_path_mtus();
        self.publish_resolved();
        Ok(())
    }

    /// Opens the sockets that are not open yet.
    ///
    /// # Errors
    /// A socket cannot be opened.
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

    /// True if programs can redirect datagrams to sockets at another port. They assign the socket
    /// (`bpf_sk_assign`) rather than rewrite the port, which the host's firewall might not accept.
    fn can_redirect(&self) -> bool {
        let assigns = || KernelVersion::running() >= Some(ASSIGNS_TO_REUSEPORT_GROUPS);
        self.programs.is_some() && (self.workers.len() == 1 || assigns())
    }

    /// Arranges the redirection of a VXLAN tunnel's datagrams, if possible. Returns the UDP port of
    /// its sockets, if that differs from the tunnel's.
    fn redirect(&mut self, tunnel: &TunnelConfig) -> Option<u16> {
        if !tunnel.spec.tunnel.descriptor().has_gro_device || !self.can_redirect() {
            return None;
        }
        let programs = self.programs.as_mut()?;
        let port = tunnel.spec.port;
        if let Some(redirect) = programs.redirect {
            return (redirect.tunnel_port == port).then_some(redirect.socket_port);
        }
        // Let the kernel choose a free port. If the address does not exist yet, opening the
        // tunnel's own sockets reports that.
        let socket = UdpSocket::bind((tunnel.address(), 0)).and_then(|it| it.local_addr()).ok()?;
        let redirect = PortRedirect { tunnel_port: port, socket_port: socket.port() };
        if let Err(error) = vxlan_gro::provide(&self.netlink, port) {
            messages::log!(VXLAN_GRO_OFF, "cannot enable GRO inside VXLAN: {error}");
            return None;
        }
        if !programs.punt.fast_path.redirect_vxlan(Some(redirect)) {
            remove_vxlan_gro(&self.netlink);
            return None;
        }
        programs.redirect = Some(redirect);
        Some(redirect.socket_port)
    }

    /// Ends the redirection if its tunnel was removed.
    fn stop_redirecting(&mut self, underlay: &Underlay) {
        let Some(programs) = &mut self.programs else { return };
        let is_for = |redirect: PortRedirect| {
            let is_redirected = |it: &TunnelConfig| {
                it.spec.tunnel.descriptor().has_gro_device && it.spec.port == redirect.tunnel_port
            };
            underlay.tunnels.iter().any(is_redirected)
        };
        if programs.redirect.is_some_and(|redirect| !is_for(redirect)) {
            programs.redirect = None;
            programs.punt.fast_path.redirect_vxlan(None);
            remove_vxlan_gro(&self.netlink);
        }
    }

    fn send_to_workers(&self, request: impl Fn() -> Request) {
        for worker in &self.workers {
            // Fails only for a worker that has ended.
            let _ = worker.send(request());
        }
    }

    fn publish_resolved(&mut self) {
        let changes: Arc<[_]> = self.resolver.take_changes().into();
        if !changes.is_empty() {
            self.send_to_workers(|| Request::Resolved(Arc::clone(&changes)));
            self.with_programs(|programs| programs.resolved(&changes));
        }
        let changes: Arc<[_]> = self.resolver.take_route_changes().into();
        if !changes.is_empty() {
            self.send_to_workers(|| Request::Routed(Arc::clone(&changes)));
            self.with_programs(|programs| programs.routed(&changes));
        }
    }

    /// Starts path MTU discovery for the current end points.
    fn discover_path_mtus(&mut self) {
        let changes = self.path_mtus.follow(&self.underlay);
        if let Err(error) = self.path_mtus.open(self.uplink.ifindex) {
            messages::log!(
                PATH_MTU_OFF,
                "cannot receive ICMP errors, so path MTUs are not discovered: {error}"
            );
        }
        self.has_new_icmp_sockets = true;
        // Publish known path MTUs again, because the end points may be new to the workers.
        self.publish_path_mtus(changes);
    }

    /// Applies a path MTU that probes have found.
    pub(super) fn set_probed_path_mtu(&mut self, endpoint: EndpointId, bytes: u16) {
        let change = self.path_mtus.probed(endpoint, bytes, Instant::now());
        self.publish_path_mtus(change.into_iter().collect());
    }

    fn publish_path_mtus(&self, changes: Vec<PathMtu>) {
        if !changes.is_empty() {
            let changes: Arc<[_]> = changes.into();
            self.send_to_workers(|| Request::PathMtus(Arc::clone(&changes)));
            self.with_programs(|programs| programs.path_mtus(&changes));
        }
    }

    fn open_ports(&mut self) {
        for (port, link) in self.open_devices() {
            self.with_programs(|programs| programs.port(port, link.as_ref()));
        }
    }

    /// Opens the device of a port if possible, and lets programs attach to it.
    fn open_port(&mut self, port: PortNo) {
        if let Some(link) = self.open_device(port) {
            self.with_programs(|programs| programs.port(port, link.as_ref()));
        }
    }

    /// Opens all devices that can be opened; returns the ports whose devices are newly open.
    fn open_devices(&mut self) -> Vec<(PortNo, Option<Link>)> {
        let ports: Vec<PortNo> = self.ports.keys().copied().collect();
        ports.into_iter().filter_map(|port| Some((port, self.open_device(port)?))).collect()
    }

    /// Opens the device of a port for the workers. `None` if it is open already, or cannot be
    /// opened.
    fn open_device(&mut self, port: PortNo) -> Option<Option<Link>> {
        let count = self.workers.len();
        let mode = self.programs.as_ref().map_or(DeviceMode::Receive, |programs| {
            DeviceMode::SendOnly { udp_segmentation: programs.udp_segmentation }
        });
        let known = self.ports.get_mut(&port)?;
        let (queues, link) = known.try_open(count, mode)?;
        let peer = known.config.peer;
        if let Some(link) = &link {
            let is_limited = !peer.is_network(link.kind.as_deref());
            self.upcalls.budgets.set_limited(port, is_limited);
        }
        for (worker, device) in self.workers.iter().zip(queues) {
            // Fails only for a worker that has ended.
            let _ = worker.send(Request::AttachDevice(port, device));
        }
        // The link is down, for example because it is the TAP of a virtual machine that does not
        // run.
        if link.as_ref().is_some_and(|link| !link.is_usable()) {
            self.send_to_workers(|| Request::Link(port, false));
        }
        Some(link)
    }

    fn tick(&mut self) {
        if self.uplink.state() == UplinkState::Gone
            && let Err(error) = self.find_uplink()
        {
            messages::log!(UPLINK_NOT_READ, "uplink: {error}");
        }
        self.resolver.tick();
        self.publish_resolved();
        let expired = self.path_mtus.expire(Instant::now());
        self.publish_path_mtus(expired);
        self.check_punt_device();
        self.open_ports();
        if let Some(Suppressed { records, most_by }) = self.log_meters.report(Instant::now()) {
            messages::log!(
                ACL_RECORDS_LEFT_OUT,
                %most_by,
                "{records} log records of ACLs were over their rate limit"
            );
        }
    }

    /// Looks for the uplink after it was gone, and opens its sockets again.
    ///
    /// # Errors
    /// The uplink does not exist, or vanishes meanwhile. The next tick tries again.
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
        self.resolver.set_uplink(link.index, link.mac);
        self.resolver.refresh();
        // This comes last, because it ends the state `Gone`, in which ticks retry.
        self.uplink_changed(Some(&link));
        self.discover_path_mtus();
        Ok(())
    }

    /// Handles the report of a worker that the device of a port is gone.
    fn port_gone(&mut self, number: PortNo, why: String) {
        if let Some(port) = self.ports.get_mut(&number)
            && port.closed(why)
        {
            self.with_programs(|programs| programs.port(number, None));
            self.send_to_workers(|| Request::DetachDevice(number));
        }
    }

    /// Handles netlink notifications.
    fn handle_notifications(&mut self) {
        let mut changes = self.resolver.drain();
        if changes.all {
            changes.links.insert(self.uplink.ifindex);
            changes.links.extend(self.ports.values().filter_map(Port::ifindex));
            changes.links.extend(self.programs.as_ref().and_then(|programs| programs.tap));
        }
        for index in changes.links {
            self.read_link(index);
        }
        self.publish_resolved();
    }

    /// Reads the state of a changed link, if the datapath uses it.
    fn read_link(&mut self, index: Ifindex) {
        // In the state `Gone` sockets are missing. `find_uplink` opens them and then ends it.
        let is_uplink = index == self.uplink.ifindex && self.uplink.state() != UplinkState::Gone;
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
            Err(error) => {
                messages::log!(LINK_NOT_READ, "cannot read the state of a link: {error}");
                // The state is unknown. Treat the link as up, and let the kernel drop frames that
                // it cannot send.
                for port in ports {
                    self.send_to_workers(|| Request::Link(port, true));
                }
                if is_uplink {
                    self.send_to_workers(|| Request::UplinkLink(true));
                }
                return;
            }
        };
        for port in ports {
            self.port_changed(port, link.as_ref());
        }
        if is_tap && link.is_none() {
            self.punt_device_gone();
        }
        if is_uplink {
            self.uplink_changed(link.as_ref());
            if let Some(link) = link {
                self.resolver.set_uplink(link.index, link.mac);
            }
            self.resolver.refresh();
        }
    }

    /// Reports the state of the uplink to the workers and programs. `None` means that its device is
    /// gone.
    fn uplink_changed(&mut self, link: Option<&Link>) {
        self.uplink.observe(link);
        let is_up = self.uplink.state() == UplinkState::Up;
        self.send_to_workers(|| Request::UplinkLink(is_up));
        self.with_programs(|programs| programs.uplink(link));
    }

    /// Handles the deletion of the punt TAP by another program; the next tick makes another TAP.
    fn punt_device_gone(&mut self) {
        let Some(programs) = &mut self.programs else { return };
        let device = &programs.punt.device;
        messages::log!(
            PUNT_TAP_GONE,
            %device,
            "the TAP for punted packets is gone, will make it again"
        );
        programs.tap = None;
        self.with_programs(|programs| programs.punt_device(None));
    }

    fn port_changed(&mut self, number: PortNo, link: Option<&Link>) {
        let Some(port) = self.ports.get_mut(&number) else { return };
        match link {
            Some(link) => {
                if port.observe(link) {
                    self.send_to_workers(|| Request::Link(number, link.is_usable()));
                }
                self.with_programs(|programs| programs.port(number, Some(link)));
            }
            None => self.port_gone(number, "the device is gone".to_owned()),
        }
    }
}

/// Removes the VXLAN device for GRO, which releases its UDP port.
fn remove_vxlan_gro(netlink: &Netlink) {
    if let Err(error) = vxlan_gro::remove(netlink) {
        messages::log!(VXLAN_GRO_LEFT, "cannot remove the device for GRO inside VXLAN: {error}");
    }
}

/// The loop of the control thread. It ends when all workers, the senders of `worker_events`, have
/// ended.
pub(super) fn run(
    control: &Mutex<Control>,
    worker_events: &mpsc::Receiver<WorkerEvent>,
    waker: &Waker,
) -> Result<(), Error> {
    let epoll = Epoll::new()?;
    epoll.add(waker.as_fd(), WAKER)?;
    epoll.add(lock(control).resolver.as_fd(), MONITOR)?;
    let mut events = EpollEvents::new();
    let (mut next_tick, mut pause) = (Instant::now() + TICK, TICK);
    loop {
        let left = next_tick.saturating_duration_since(Instant::now());
        epoll.wait(&mut events, Some(left.min(pause)))?;
        let mut control = lock(control);
        for token in events.tokens() {
            match token {
                MONITOR => control.handle_notifications(),
                WAKER => drop(waker.clear()),
                token => {
                    let number = (token - ICMP) as usize;
                    let changes = control.path_mtus.receive(number, Instant::now());
                    control.publish_path_mtus(changes);
                }
            }
        }
        loop {
            match worker_events.try_recv() {
                Ok(WorkerEvent::PortGone(port, why)) => control.port_gone(port, why),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
        }
        if std::mem::take(&mut control.has_new_icmp_sockets) {
            for (number, socket) in control.path_mtus.sockets() {
                epoll.add(socket.as_fd(), ICMP + number as u64)?;
            }
        }
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + TICK;
            control.tick();
        } else if events.is_empty() {
            control.resolver.resume();
            control.publish_resolved();
        }
        pause = if control.resolver.is_behind() { resolve::PAUSE } else { TICK };
    }
}

pub(super) fn lock(control: &Mutex<Control>) -> MutexGuard<'_, Control> {
    // After a panic, the next tick reads the state again.
    control.lock().unwrap_or_else(PoisonError::into_inner)
}
