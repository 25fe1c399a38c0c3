//! The user datapath: one thread that moves frames between guests' devices and the underlay.
//!
//! Follow a packet through the files:
//!
//! - a guest's frame: [`vif`] receives it, [`forward`] looks up its destination MAC address and executes the actions,
//!   [`transmit`] puts it on the underlay;
//! - a frame from the underlay: [`receive`] ([`stt`] for STT) takes it out of its tunnel and coalesces trains, [`forward`] looks it up, [`vif`]
//!   hands it to the guest.
//!
//! [`resolve`] keeps the Ethernet addresses of STT end points, [`mailbox`] is how other threads ask for counters.
//!
//! Everything is owned by the forwarding thread; there is no lock. Within one port and one tunnel socket frames keep
//! their order.

pub mod config;
mod forward;
pub mod mailbox;
mod receive;
mod resolve;
mod stt;
mod transmit;
mod uplink;
mod vif;

pub use config::{Config, DeviceConfig, GuestConfig, PortConfig};
pub use mailbox::{Mailbox, MailboxError};

use crate::stats::{EndpointStats, Snapshot};
use flow::{DropReason, PortNo, TunnelType};
use forward::Forwarder;
use mailbox::Request;
use netdev::Error;
use netdev::af_packet::VlanTag;
use netdev::epoll::{Epoll, Events, Waker};
use netdev::io_error::IoError;
use packet::PacketBuf;
use receive::Receiver;
use resolve::Resolver;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use uplink::{State, Uplink};
use vif::Vif;
use wire::EtherType;
use wire::vlan::Tag;

/// Frames read from one descriptor before the others get their turn.
const BATCH: usize = 32;
/// How often devices that are gone are looked for again and kernel counters are read.
const TICK: Duration = Duration::from_millis(500);

/// What an epoll event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    Waker,
    Monitor,
    Tags,
    Receiver(usize),
    Vif(usize),
}

impl Token {
    fn to_u64(self) -> u64 {
        let (kind, index) = match self {
            Self::Waker => (0, 0),
            Self::Monitor => (1, 0),
            Self::Tags => (2, 0),
            Self::Receiver(index) => (3, index),
            Self::Vif(index) => (4, index),
        };
        kind << 32 | index as u64
    }

    fn from_u64(token: u64) -> Option<Self> {
        let index = token as u32 as usize;
        Some(match token >> 32 {
            0 => Self::Waker,
            1 => Self::Monitor,
            2 => Self::Tags,
            3 => Self::Receiver(index),
            4 => Self::Vif(index),
            _ => return None,
        })
    }
}

/// A user datapath that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The kernel refused something.
    #[error(transparent)]
    Device(#[from] Error),
    /// Port numbers must be 1, 2, 3, ... in order.
    #[error("port {0} stands out of order")]
    PortOrder(PortNo),
}

/// See the module.
#[derive(Debug)]
pub struct UserDatapath {
    host: String,
    started: Instant,
    epoll: Epoll,
    waker: Arc<Waker>,
    requests: mpsc::Receiver<Request>,
    resolver: Resolver,
    receivers: Vec<Receiver>,
    forwarder: Forwarder,
    packet: PacketBuf,
}

impl UserDatapath {
    /// Opens the sockets of the underlay in this thread's network namespace and the devices of all ports that can be opened;
    /// the others are retried while the datapath runs. Nothing is left behind when this fails.
    ///
    /// # Errors
    /// [`SetupError`] when the underlay cannot be opened: no such uplink, an address that is not this host's, a port taken.
    pub fn new(config: Config) -> Result<(Self, Mailbox), SetupError> {
        let (mailbox, requests, waker) = Mailbox::new()?;
        let epoll = Epoll::new()?;
        epoll.add(waker.as_fd(), Token::Waker.to_u64())?;
        if let Some(port) = config.ports.iter().zip(1..).find(|(p, n)| p.port.0 != *n) {
            return Err(SetupError::PortOrder(port.0.port));
        }
        let mut uplink = Uplink::open(&config)?;
        let mut resolver = Resolver::open(uplink.ifindex(), &config.endpoints)?;
        uplink.observe(Some(&resolver.follow(uplink.ifindex())?));
        epoll.add(resolver.as_fd(), Token::Monitor.to_u64())?;
        if let Some(tags) = uplink.tags() {
            epoll.add(tags.as_fd(), Token::Tags.to_u64())?;
        }
        let mut receivers = Vec::new();
        let mut transmit = transmit::Transmit::default();
        for (index, (spec, local)) in config.tunnels.iter().enumerate() {
            transmit.open(spec, *local, config.entropy_ports)?;
            let receiver = Receiver::open(spec, *local, uplink.ifindex())?;
            epoll.add(receiver.as_fd(), Token::Receiver(index).to_u64())?;
            receivers.push(receiver);
        }
        let vifs = config.ports.into_iter().map(Vif::new).collect();
        let forwarder = Forwarder::new(config.table, config.endpoints, vifs, uplink, transmit);
        let mut datapath = Self {
            host: config.host,
            started: Instant::now(),
            epoll,
            waker,
            requests,
            resolver,
            receivers,
            forwarder,
            packet: PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME),
        };
        datapath.resolver.begin(&mut datapath.forwarder.endpoints);
        datapath.open_ports();
        Ok((datapath, mailbox))
    }

    /// Forwards until [`Mailbox::stop`].
    ///
    /// # Errors
    /// [`Error`] when the loop itself cannot go on; devices that fail are no such error.
    pub fn run(&mut self) -> Result<(), Error> {
        let mut events = Events::new();
        let mut next_tick = Instant::now() + TICK;
        loop {
            let timeout = next_tick.saturating_duration_since(Instant::now());
            self.epoll.wait(&mut events, Some(timeout))?;
            for token in events.tokens().filter_map(Token::from_u64) {
                match token {
                    Token::Waker => {
                        if self.answer() {
                            return Ok(());
                        }
                    }
                    Token::Monitor => self.resolver.drain(&mut self.forwarder),
                    Token::Tags => self.receive_tagged(),
                    Token::Receiver(index) => {
                        if let Some(receiver) = self.receivers.get_mut(index) {
                            receiver.receive(&mut self.forwarder);
                        }
                    }
                    Token::Vif(index) => self.receive_from_vif(index),
                }
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                self.tick();
            }
        }
    }

    fn receive_from_vif(&mut self, index: usize) {
        for _ in 0..BATCH {
            let Some(vif) = self.forwarder.out.vifs.get_mut(index) else { return };
            let Some(device) = vif.device() else { return };
            self.packet.reset(PacketBuf::HEADROOM);
            match device.recv(&mut self.packet) {
                Ok(Some(())) => {
                    vif.rx.add(self.packet.len());
                    self.forwarder.vif_frame(index, &mut self.packet);
                }
                Ok(None) => return,
                Err(IoError::LinkDown) => return,
                Err(IoError::Malformed | IoError::Truncated | IoError::Offload(_)) => {
                    vif.drops.add(DropReason::Malformed, 1);
                }
                Err(error @ IoError::DeviceGone) => return vif.close(&error),
                // Such as a kind of super-packet that an older kernel has no words for: the frame is lost, the next is not.
                Err(_) => vif.drops.add(DropReason::DeviceError, 1),
            }
        }
    }

    fn receive_tagged(&mut self) {
        for _ in 0..BATCH {
            self.packet.reset(PacketBuf::HEADROOM);
            if !self.forwarder.out.uplink.recv_tagged(&mut self.packet) {
                return;
            }
            self.forwarder.tagged_frame(&mut self.packet);
        }
    }

    /// Answers what other threads ask; true when the loop is to end.
    fn answer(&mut self) -> bool {
        self.waker.clear();
        while let Ok(request) = self.requests.try_recv() {
            match request {
                // Whoever asked may have given up waiting.
                Request::Snapshot(sender) => drop(sender.send(self.snapshot())),
                Request::Stop => return true,
            }
        }
        false
    }

    fn tick(&mut self) {
        let now_ms = self.started.elapsed().as_millis() as u64;
        for receiver in &mut self.receivers {
            receiver.tick(now_ms, &mut self.forwarder.out.uplink.drops);
        }
        self.forwarder.out.uplink.tick();
        if let Err(error) = self.find_uplink() {
            tracing::debug!("uplink: {error}");
        }
        self.resolver.tick(&mut self.forwarder.endpoints);
        self.open_ports();
    }

    /// Looks for the uplink when it is gone; what was bound to it is opened anew.
    ///
    /// # Errors
    /// It is not there, or goes again in the meantime: the next tick tries again.
    fn find_uplink(&mut self) -> Result<(), Error> {
        let uplink = &mut self.forwarder.out.uplink;
        if uplink.state() != State::Gone {
            return Ok(());
        }
        uplink.reopen()?;
        if let Some(tags) = uplink.tags() {
            self.epoll.add(tags.as_fd(), Token::Tags.to_u64())?;
        }
        for (index, receiver) in self.receivers.iter_mut().enumerate() {
            if receiver.reopen(uplink.ifindex())? {
                let token = Token::Receiver(index).to_u64();
                self.epoll.add(receiver.as_fd(), token)?;
            }
        }
        // Last: with another state than Gone, nothing is tried again.
        let link = self.resolver.follow(uplink.ifindex())?;
        uplink.observe(Some(&link));
        self.resolver.refresh(&mut self.forwarder.endpoints);
        Ok(())
    }

    /// Opens the devices that are not open and can be.
    fn open_ports(&mut self) {
        for (index, vif) in self.forwarder.out.vifs.iter_mut().enumerate() {
            if vif.try_open()
                && let Some(device) = vif.device()
                && let Err(error) = self.epoll.add(device.as_fd(), Token::Vif(index).to_u64())
            {
                tracing::error!(port = %vif.config.name, "cannot wait for frames: {error}");
            }
        }
    }

    /// All counters of this moment.
    pub fn snapshot(&self) -> Snapshot {
        let endpoints = &self.forwarder.endpoints;
        let mut rows: Vec<_> = endpoints
            .iter()
            .map(|(_, remote, endpoint)| {
                let (spec, local) = endpoints.class(endpoint);
                let neighbour = match (spec.tunnel, endpoint.resolved) {
                    (TunnelType::Stt, true) => "resolved",
                    (TunnelType::Stt, false) => "unresolved",
                    _ => "kernel",
                };
                EndpointStats {
                    tunnel: spec.tunnel.name().to_owned(),
                    local,
                    remote,
                    neighbour: neighbour.to_owned(),
                    rx: endpoint.rx.into(),
                    tx: endpoint.tx.into(),
                }
            })
            .collect();
        rows.sort_by(|a, b| (&a.tunnel, a.remote).cmp(&(&b.tunnel, b.remote)));
        Snapshot {
            host: self.host.clone(),
            pid: std::process::id(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            ports: self.forwarder.out.vifs.iter().map(Vif::stats).collect(),
            uplink: self.forwarder.out.uplink.stats(),
            endpoints: rows,
        }
    }
}

/// Puts a tag that the kernel has taken out of a frame back into its bytes. A frame too short for it becomes empty, which is
/// refused as malformed: without its tag it would belong to another network.
fn restore_tag(packet: &mut PacketBuf, tag: VlanTag) {
    if flow::push_vlan(packet, Tag::from_tci(EtherType(tag.tpid), tag.tci)).is_err() {
        packet.set_len(0);
    }
}
