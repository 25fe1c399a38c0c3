//! What the datapath does beside forwarding, on a thread of its own so that no frame waits for it: opens the devices of
//! ports, follows links, routes and neighbours, and tells the workers.

use super::config::{Config, EndpointConfig, PortConfig, Underlay};
use super::mailbox::{Mailbox, Request};
use super::path_mtu::{PathMtu, PathMtus};
use super::port::Port;
use super::resolve::Resolver;
use super::uplink::{UplinkNeeds, UplinkSockets};
use super::uplink_watch::{State, UplinkWatch};
use super::{Notice, TICK};
use crate::provider::DatapathError;
use flow::PortNo;
use netdev::epoll::{Epoll, Events, Waker};
use netdev::{Error, Ifindex, Link, Netlink};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const WAKER: u64 = 0;
const MONITOR: u64 = 1;
/// And those behind it: sockets that hear about paths.
const PATHS: u64 = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) ports: BTreeMap<PortNo, Port>,
    pub(super) uplink: UplinkWatch,
    needs: UplinkNeeds,
    netlink: Netlink,
    resolver: Resolver,
    paths: PathMtus,
    /// The sockets of `paths` are new, and nobody waits for them yet.
    new_paths: bool,
    endpoints: Vec<EndpointConfig>,
    workers: Vec<Mailbox>,
}

impl Control {
    pub(super) fn open(config: &Config, uplink: Ifindex) -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        let resolver = Resolver::open(uplink, &config.underlay.endpoints)?;
        let first = u32::from(config.entropy_base);
        let ports = u32::from(config.entropy_ports.next_power_of_two());
        let paths = PathMtus::new(first..first + ports);
        let mut watch = UplinkWatch::new(config, uplink);
        watch.observe(Some(&netlink.link_by_index(uplink)?));
        let ports = config.ports.iter().map(|port| (port.port, Port::new(port.clone())));
        Ok(Self {
            ports: ports.collect(),
            uplink: watch,
            needs: UplinkNeeds::of(&config.underlay),
            netlink,
            resolver,
            paths,
            new_paths: false,
            endpoints: config.underlay.endpoints.clone(),
            workers: Vec::new(),
        })
    }

    /// Begins: everything that can be is open and resolved when this returns.
    pub(super) fn begin(&mut self, workers: Vec<Mailbox>) {
        self.workers = workers;
        self.resolver.begin();
        self.follow_paths();
        self.tell_resolved();
        self.open_ports();
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
        let remove = |worker: &Mailbox| worker.ask(|reply| Request::RemovePort(port, reply));
        self.workers.iter().try_for_each(remove)
    }

    /// Goes over to other tunnels and end points.
    pub(super) fn set_underlay(&mut self, underlay: Underlay) -> Result<(), DatapathError> {
        let needs = UplinkNeeds::of(&underlay);
        let underlay = Arc::new(underlay);
        for worker in &self.workers {
            let sockets = if needs == self.needs {
                None
            } else {
                let opened = UplinkSockets::open(needs, self.uplink.ifindex);
                Some(opened.map_err(|error| DatapathError::Underlay(error.to_string()))?)
            };
            worker
                .ask(|reply| Request::Underlay(Arc::clone(&underlay), sockets, reply))?
                .map_err(DatapathError::Underlay)?;
        }
        self.needs = needs;
        self.uplink.require(&underlay);
        self.resolver.follow_endpoints(&underlay.endpoints);
        self.endpoints.clone_from(&underlay.endpoints);
        self.follow_paths();
        self.tell_resolved();
        Ok(())
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
        }
    }

    /// Listens for what is said about the paths to the end points that there are now.
    fn follow_paths(&mut self) {
        if let Err(error) = self.paths.follow(&self.endpoints, self.uplink.ifindex) {
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
        }
    }

    fn open_ports(&mut self) {
        let ports: Vec<PortNo> = self.ports.keys().copied().collect();
        ports.into_iter().for_each(|port| self.open_port(port));
    }

    /// Opens the device of a port if it is not open and can be.
    fn open_port(&mut self, port: PortNo) {
        if let Some(device) = self.ports.get_mut(&port).and_then(Port::try_open)
            && let Some(worker) = self.workers.first()
        {
            let _ = worker.send(Request::Plug(port, device));
        }
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
        self.open_ports();
    }

    /// Looks for the uplink when it is gone; the workers open anew what was bound to it.
    ///
    /// # Errors
    /// It is not there, or goes again in the meantime: the next tick tries again.
    fn find_uplink(&mut self) -> Result<(), Error> {
        let link = self.netlink.link(&self.uplink.device)?;
        for worker in &self.workers {
            let sockets = UplinkSockets::open(self.needs, link.index)?;
            let _ = worker.send(Request::Uplink(link.index, sockets));
        }
        self.resolver.follow(link.index, link.mac);
        self.resolver.refresh();
        // Last: with another state than Gone, nothing is tried again.
        self.uplink.ifindex = link.index;
        self.uplink.observe(Some(&link));
        self.follow_paths();
        Ok(())
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::PortGone(port, why) => {
                if let Some(port) = self.ports.get_mut(&port) {
                    port.closed(why);
                }
            }
            Notice::UplinkRefused => self.uplink.observe(None),
        }
    }

    /// Takes over what the kernel says has changed.
    fn follow(&mut self) {
        let mut news = self.resolver.drain();
        if news.all {
            news.links.insert(self.uplink.ifindex);
            news.links.extend(self.ports.values().filter_map(Port::ifindex));
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
        if !is_uplink && ports.is_empty() {
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
        if is_uplink {
            self.uplink.observe(link.as_ref());
            if let Some(link) = link {
                self.resolver.follow(link.index, link.mac);
            }
            self.resolver.refresh();
        }
    }

    fn port_changed(&mut self, number: PortNo, link: Option<&Link>) {
        let Some(port) = self.ports.get_mut(&number) else { return };
        match link {
            Some(link) => port.observe(link),
            None => {
                port.closed("the device is gone".to_owned());
                self.tell(|| Request::Unplug(number));
            }
        }
    }
}

/// The control thread's loop; it ends when `notices` has no sender any more.
pub(super) fn run(
    control: &Mutex<Control>,
    notices: &Receiver<Notice>,
    waker: &Waker,
) -> Result<(), Error> {
    let epoll = Epoll::new()?;
    epoll.add(waker.as_fd(), WAKER)?;
    epoll.add(lock(control).resolver.as_fd(), MONITOR)?;
    let mut events = Events::new();
    let mut next_tick = Instant::now() + TICK;
    loop {
        epoll.wait(&mut events, Some(next_tick.saturating_duration_since(Instant::now())))?;
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
                Ok(notice) => control.notice(notice),
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(()),
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
        }
    }
}

pub(super) fn lock(control: &Mutex<Control>) -> MutexGuard<'_, Control> {
    // What a panic leaves behind here is read anew at the next tick.
    control.lock().unwrap_or_else(PoisonError::into_inner)
}
