//! A forwarding worker: one thread that moves frames between guests' devices and the underlay.

mod metered;

use super::busy_poll::{BusyPoll, IdleMode};
use super::cache::CacheStats;
use super::device::Device;
use super::fast_path::punt_reader::{PuntReader, Punted};
use super::forward::{Forwarder, MAX_ICMP_REPLIES};
use super::mailbox::{PortCounters, PortReport, Request, WorkerCounters};
use super::read_budget::ReadBudget;
use super::receive::Receiver;
use super::transmit;
use super::uplink::UplinkSockets;
use super::{TICK, WorkerEvent, WorkerEventSender};
use datapath::config::{EndpointConfig, LinkConfig, Underlay};
use datapath::cpu_meter::CpuMeter;
use datapath::megaflow::MegaflowId;
use datapath::stats::{EndpointStats, MegaflowStats};
use flow::{
    Carrier, DropReason, Endpoint, EndpointError, EndpointId, PortNo, TunnelInfo, strip_outer,
};
use metered::PuntedTurns;
use netdev::Error;
use netdev::epoll::{Epoll, EpollEvents, Waker};
use netdev::io_error::IoError;
use packet::PacketBuf;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use wire::{EthernetPacket, Protocol};

/// The source of an epoll event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EventSource {
    Waker,
    Tags,
    Receiver(usize),
    Vif(PortNo),
    Punt,
}

impl EventSource {
    fn to_u64(self) -> u64 {
        let (kind, index) = match self {
            Self::Waker => (0, 0),
            Self::Tags => (1, 0),
            Self::Receiver(index) => (2, index as u64),
            Self::Vif(port) => (3, port.0.into()),
            Self::Punt => (4, 0),
        };
        kind << 32 | index
    }

    fn from_u64(token: u64) -> Option<Self> {
        let index = token as u32;
        Some(match token >> 32 {
            0 => Self::Waker,
            1 => Self::Tags,
            2 => Self::Receiver(index as usize),
            3 => Self::Vif(PortNo(index)),
            4 => Self::Punt,
            _ => return None,
        })
    }
}

/// The state of a forwarding thread. No other thread reads it, so packets are forwarded without
/// locks.
#[derive(Debug)]
pub(super) struct Worker {
    started: Instant,
    epoll: Epoll,
    busy_poll: BusyPoll,
    waker: Arc<Waker>,
    requests: mpsc::Receiver<Request>,
    /// Indexed by the number in [`EventSource::Receiver`]; `None` where a tunnel was removed.
    receivers: Vec<Option<Receiver>>,
    /// This worker's queue of the TAP by which eBPF programs punt frames.
    punt_reader: Option<PuntReader>,
    forwarder: Forwarder,
    cpu_meter: CpuMeter,
    punted_turns: PuntedTurns,
    packet: PacketBuf,
    event_sender: WorkerEventSender,
}

impl Worker {
    pub(super) fn new(
        started: Instant,
        (requests, waker): (mpsc::Receiver<Request>, Arc<Waker>),
        forwarder: Forwarder,
        busy_poll: BusyPoll,
        event_sender: WorkerEventSender,
    ) -> Result<Self, Error> {
        let epoll = Epoll::new()?;
        epoll.add(waker.as_fd(), EventSource::Waker.to_u64())?;
        let packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        Ok(Self {
            started,
            epoll,
            busy_poll,
            waker,
            requests,
            receivers: Vec::new(),
            punt_reader: None,
            forwarder,
            cpu_meter: CpuMeter::default(),
            punted_turns: PuntedTurns::default(),
            packet,
            event_sender,
        })
    }

    /// Forwards until it is asked to stop.
    ///
    /// # Errors
    /// `epoll_wait` fails. A failing device is reported to the control thread instead.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        let mut events = EpollEvents::new();
        let mut next_tick = Instant::now() + TICK;
        loop {
            let idle = Instant::now();
            let timeout = match self.busy_poll.idle(idle) {
                IdleMode::Poll => Duration::ZERO,
                IdleMode::Sleep => next_tick.saturating_duration_since(idle),
            };
            self.epoll.wait(&mut events, Some(timeout))?;
            let now = Instant::now();
            if !events.is_empty() {
                self.busy_poll.busy(now);
            } else if timeout.is_zero() {
                // While this thread busy-polls, let other runnable threads have the processor.
                thread::yield_now();
            }
            self.forwarder.now_ms = (now - self.started).as_millis() as u64;
            for token in events.tokens().filter_map(EventSource::from_u64) {
                match token {
                    EventSource::Waker => {
                        if self.handle_requests() {
                            return Ok(());
                        }
                    }
                    EventSource::Tags => self.receive_tagged(),
                    EventSource::Receiver(index) => {
                        if let Some(Some(receiver)) = self.receivers.get_mut(index) {
                            receiver.receive(&mut self.forwarder);
                        }
                    }
                    EventSource::Vif(port) => self.receive_from_vif(port),
                    EventSource::Punt => self.receive_punted(),
                }
                self.forwarder.flush_upcalls();
            }
            if now >= next_tick {
                next_tick = now + TICK;
                self.tick();
            }
        }
    }

    /// Forwards frames of a port until its turn is over; returns how many.
    fn read_vif(&mut self, port: PortNo) -> u32 {
        let (mut budget, mut read) = (ReadBudget::default(), 0);
        while budget.take_read() {
            let Some(vif) = self.forwarder.out.vif(port) else { return read };
            let Some(device) = &vif.device else { return read };
            self.packet.reset(PacketBuf::HEADROOM);
            match device.recv(&mut self.packet) {
                Ok(Some(())) => {
                    read += 1;
                    vif.rx.add(self.packet.len());
                    budget.take_segments(&self.packet);
                    let before = self.forwarder.out.passes.opened();
                    self.handle_guest_frame(port);
                    budget.take_commits(self.forwarder.out.passes.opened().wrapping_sub(before));
                }
                Ok(None) | Err(IoError::LinkDown) => return read,
                Err(IoError::Malformed | IoError::Truncated | IoError::Offload(_)) => {
                    vif.drops.add(DropReason::Malformed, 1);
                }
                Err(error @ IoError::DeviceGone) => {
                    vif.close(&error);
                    self.report_gone(port);
                    return read;
                }
                // One frame cannot be read, e.g. a GSO type that virtio-net cannot express;
                // continue.
                Err(_) => vif.drops.add(DropReason::DeviceError, 1),
            }
        }
        read
    }

    /// Forwards a frame that a guest has sent, and shows it to observers.
    fn handle_guest_frame(&mut self, port: PortNo) {
        let Self { packet, forwarder, .. } = self;
        let refused = if packet::has_tiny_segments(packet) {
            Some(DropReason::TinySegments)
        } else if forwarder.out.vif(port).is_some_and(|vif| !vif.segment_limit.passes(packet)) {
            Some(DropReason::SegmentLimit)
        } else {
            None
        };
        if let Some(reason) = refused {
            forwarder.copy_to_watchers(port, packet);
            return forwarder.drop_packet(port, reason, packet);
        }
        let settled = packet::complete_misplaced_checksum(packet);
        forwarder.copy_to_watchers(port, packet);
        match settled {
            Ok(()) => forwarder.forward(port, None, packet),
            Err(_) => forwarder.drop_packet(port, DropReason::Malformed, packet),
        }
    }

    /// Reports to the control thread that a port's device is gone, if it is.
    fn report_gone(&mut self, port: PortNo) {
        if let Some(vif) = self.forwarder.out.vif(port)
            && let Some(why) = vif.gone.take()
        {
            self.event_sender.send(WorkerEvent::PortGone(port, why));
        }
    }

    fn receive_tagged(&mut self) {
        let mut budget = ReadBudget::default();
        while budget.take_read() {
            self.packet.reset(PacketBuf::HEADROOM);
            if !self.forwarder.out.uplink.recv_tagged(&mut self.packet) {
                return;
            }
            budget.take_segments(&self.packet);
            self.handle_tagged_frame();
        }
    }

    /// Forwards a tagged frame from the uplink.
    fn handle_tagged_frame(&mut self) {
        let Self { packet, forwarder, .. } = self;
        match forwarder.out.uplink.links.decap(packet) {
            Ok((link, port)) => forwarder.forward(port, Some(&TunnelInfo::of_link(link)), packet),
            Err(reason) => self.drop_uplink_packet(reason),
        }
    }

    /// Drops a packet from the uplink and shows it to observers.
    fn drop_uplink_packet(&mut self, reason: DropReason) {
        let port = self.forwarder.out.uplink_port();
        self.forwarder.drop_packet(port, reason, &self.packet);
    }

    fn receive_punted(&mut self) {
        let Some(mut reader) = self.punt_reader.take() else { return };
        let (mut budget, mut saw_empty) = (ReadBudget::default(), false);
        self.meter_punted_batch();
        while !saw_empty && budget.take_read() {
            match reader.recv(&mut self.packet) {
                Ok(Some(())) => {
                    budget.take_segments(&self.packet);
                    let before = self.forwarder.out.passes.opened();
                    match reader.decode(&mut self.packet) {
                        Some(punted) => self.meter_punted_frame(punted),
                        None => self.drop_uplink_packet(DropReason::Malformed),
                    }
                    budget.take_commits(self.forwarder.out.passes.opened().wrapping_sub(before));
                }
                Ok(None) | Err(IoError::LinkDown) => saw_empty = true,
                Err(IoError::Malformed | IoError::Truncated | IoError::Offload(_)) => {
                    self.forwarder.count_uplink_drop(DropReason::Malformed);
                }
                // The control thread sees this by netlink and makes another TAP.
                Err(IoError::DeviceGone) => return self.flush_punted(),
                Err(_) => self.forwarder.count_uplink_drop(DropReason::DeviceError),
            }
        }
        self.flush_punted();
        self.charge_punted();
        reader.finish_batch(saw_empty);
        self.punt_reader = Some(reader);
    }

    fn flush_punted(&mut self) {
        for receiver in self.receivers.iter_mut().flatten() {
            receiver.flush_punted(&mut self.forwarder);
        }
    }

    /// Forwards a punted frame as if it had been read from its ingress port.
    fn handle_punted_frame(&mut self, Punted { port, is_expired }: Punted) {
        // With the punt header in front, the kernel did not recognize SCTP and left its CRC
        // partial.
        packet::complete_crc32c(&mut self.packet);
        let Self { packet, forwarder, .. } = self;
        if port == forwarder.out.uplink_port() {
            return match is_expired {
                false => self.handle_punted_uplink_frame(),
                true => self.drop_uplink_packet(DropReason::PuntExpired),
            };
        }
        let Some(vif) = forwarder.out.vif(port) else {
            return self.drop_uplink_packet(DropReason::NoSuchPort);
        };
        vif.rx.add(packet.len());
        if is_expired {
            return forwarder.drop_packet(port, DropReason::PuntExpired, packet);
        }
        self.handle_guest_frame(port);
    }

    fn handle_punted_uplink_frame(&mut self) {
        let Self { packet, forwarder, receivers, .. } = self;
        if EthernetPacket::new_checked(packet.head()).is_ok_and(|it| it.ethertype().is_vlan()) {
            forwarder.out.uplink.rx.add(packet.len());
            return self.handle_tagged_frame();
        }
        let outer = match strip_outer(packet) {
            Ok(outer) if outer.protocol == Protocol::GRE => outer,
            Ok(_) => return self.drop_uplink_packet(DropReason::TunnelProtocol),
            Err(reason) => return self.drop_uplink_packet(reason),
        };
        let mut receivers = receivers.iter_mut().flatten();
        match receivers.find(|receiver| receiver.receives_punted(&outer, &forwarder.endpoints)) {
            Some(receiver) => receiver.receive_punted(&outer, packet, forwarder),
            None => self.drop_uplink_packet(DropReason::UnknownEndpoint),
        }
    }

    /// Carries out the requests of other threads. True if one of them is to stop.
    fn handle_requests(&mut self) -> bool {
        self.waker.clear();
        while let Ok(request) = self.requests.try_recv() {
            match request {
                Request::Stop => return true,
                request => self.handle_request(request),
            }
        }
        false
    }

    fn handle_request(&mut self, request: Request) {
        let Self { forwarder, .. } = self;
        let cache = &mut forwarder.caches;
        // A failed reply means that the requester has timed out.
        match request {
            Request::Answers(answers) => self.handle_answers(answers),
            Request::Put(megaflows) => megaflows.iter().for_each(|megaflow| {
                // If the cache is full, these packets keep raising upcalls.
                let _ = cache.put(megaflow);
            }),
            Request::BeginEpoch => cache.begin_epoch(),
            Request::Confirm(ids) => ids.iter().for_each(|&id| cache.confirm(id)),
            Request::WithdrawUnconfirmed(reply) => {
                cache.withdraw_unconfirmed();
                let _ = reply.send(());
            }
            Request::Delete(ids, reply) => {
                let delete = |&id: &MegaflowId| Some((id, cache.delete(id)?));
                let _ = reply.send(ids.iter().filter_map(delete).collect());
            }
            Request::Get(ids, reply) => {
                let get = |&id: &MegaflowId| Some(cache.get(id)?.0);
                let _ = reply.send(ids.iter().filter_map(get).collect());
            }
            Request::Dump(from, most, reply) => {
                let mut out = Vec::new();
                let next = cache.dump(from, most, &mut out);
                let _ = reply.send((out, next));
            }
            Request::Usage(from, most, reply) => {
                let mut out = Vec::new();
                let next = cache.usage(from, most, &mut out);
                let _ = reply.send((out, next));
            }
            Request::ForgetSolicitations => forwarder.out.forget_solicitations(),
            Request::Execute(port, mut packet, actions) => {
                forwarder.execute(port, &mut packet, &actions);
            }
            Request::Watch(watch) => forwarder.out.watchers.add(watch),
            Request::Report(reply) => drop(reply.send(self.report())),
            Request::AttachDevice(port, device) => self.attach_device(port, device),
            Request::Link(port, is_up) => {
                if let Some(vif) = forwarder.out.vif(port) {
                    vif.is_down = !is_up;
                }
            }
            Request::UplinkLink(is_up) => forwarder.out.uplink.is_down = !is_up,
            Request::DetachDevice(port) => {
                if let Some(vif) = forwarder.out.vif(port) {
                    vif.device = None;
                }
            }
            Request::RemovePort(port, reply) => {
                let _ = reply.send(forwarder.out.remove_vif(port));
            }
            Request::Underlay(underlay, reply) => drop(reply.send(self.set_underlay(&underlay))),
            Request::Tunnel(receiver, sender) => self.add_tunnel(*receiver, sender),
            Request::CloseUnderlay(reply) => {
                self.receivers.clear();
                forwarder.out.transmit.retain(&[]);
                forwarder.out.uplink.replace(UplinkSockets::default());
                let _ = reply.send(());
            }
            Request::PuntQueue(reader) => {
                if let Err(error) = self.epoll.add(reader.as_fd(), EventSource::Punt.to_u64()) {
                    messages::log!(
                        PUNT_TAP_NOT_POLLED,
                        "cannot poll the punt TAP, so punted packets are lost: {error}"
                    );
                }
                self.punt_reader = Some(reader);
            }
            Request::Overrun(frames) => {
                forwarder.out.uplink.drops.add(DropReason::ReceiveOverrun, frames);
            }
            Request::Uplink(sockets) => {
                if let Some(tags) = &sockets.tags
                    && let Err(error) = self.epoll.add(tags.as_fd(), EventSource::Tags.to_u64())
                {
                    messages::log!(
                        UPLINK_NOT_POLLED,
                        "cannot poll the uplink for tagged frames: {error}"
                    );
                }
                forwarder.out.uplink.replace(sockets);
            }
            Request::Resolved(changes) => {
                for &(endpoint, hop) in changes.iter() {
                    forwarder.endpoints.resolve(endpoint, hop);
                }
            }
            Request::Routed(changes) => {
                for &(endpoint, is_routed) in changes.iter() {
                    forwarder.endpoints.set_routed(endpoint, is_routed);
                }
            }
            Request::PathMtus(changes) => {
                for &(endpoint, mtu) in changes.iter() {
                    forwarder.endpoints.set_path_mtu(endpoint, mtu);
                }
            }
            // `handle_requests` has returned before.
            Request::Stop => {}
        }
    }

    fn attach_device(&mut self, port: PortNo, device: Device) {
        if let Err(error) = self.epoll.add(device.as_fd(), EventSource::Vif(port).to_u64()) {
            let why = format!("cannot poll the device: {error}");
            return self.event_sender.send(WorkerEvent::PortGone(port, why));
        }
        let vif = self.forwarder.out.vif_or_new(port);
        (vif.device, vif.is_down) = (Some(device), false);
    }

    /// Replaces the end points and tag links, and closes the tunnels that were removed. End points
    /// and tunnels that stay the same are not touched.
    ///
    /// # Errors
    /// An end point is invalid; the others are in place.
    fn set_underlay(&mut self, underlay: &Underlay) -> Result<(), EndpointError> {
        let links = underlay.links.iter().map(|&LinkConfig { port, link }| (link, port));
        self.forwarder.out.uplink.links = links.collect();
        let endpoints = &mut self.forwarder.endpoints;
        endpoints.check_reverse_path(underlay.checks_reverse_path);
        let stay: HashMap<EndpointId, &EndpointConfig> =
            underlay.endpoints.iter().map(|endpoint| (endpoint.id, endpoint)).collect();
        let is_gone = |(id, remote, endpoint): (EndpointId, IpAddr, &Endpoint)| {
            let (spec, local) = endpoints.class(endpoint);
            let stays = stay.get(&id).is_some_and(|config| {
                (config.spec, config.local, config.remote) == (*spec, local, remote)
            });
            (!stays).then_some(id)
        };
        let gone: Vec<EndpointId> = endpoints.iter().filter_map(is_gone).collect();
        gone.into_iter().for_each(|id| endpoints.remove(id));
        for EndpointConfig { id, spec, local, remote } in &underlay.endpoints {
            endpoints.insert(*id, spec, *local, *remote)?;
        }
        for slot in &mut self.receivers {
            slot.take_if(|receiver| !underlay.tunnels.contains(receiver.tunnel()));
        }
        self.forwarder.out.transmit.retain(&underlay.tunnels);
        Ok(())
    }

    fn add_tunnel(&mut self, receiver: Receiver, sender: Option<transmit::Sender>) {
        if let Some(sender) = sender {
            self.forwarder.out.transmit.add(sender);
        }
        let free = self.receivers.iter().position(Option::is_none);
        let index = free.unwrap_or(self.receivers.len());
        if let Some(fd) = receiver.as_fd()
            && let Err(error) = self.epoll.add(fd, EventSource::Receiver(index).to_u64())
        {
            messages::log!(TUNNEL_NOT_POLLED, "cannot poll the socket of a tunnel: {error}");
        }
        match self.receivers.get_mut(index) {
            Some(slot) => *slot = Some(receiver),
            None => self.receivers.push(Some(receiver)),
        }
    }

    fn tick(&mut self) {
        let forwarder = &mut self.forwarder;
        for receiver in self.receivers.iter_mut().flatten() {
            receiver.tick(forwarder.now_ms, &mut forwarder.out.uplink.drops);
        }
        forwarder.out.uplink.tick();
        forwarder.caches.maintain();
        forwarder.out.tracker.expire();
        forwarder.out.count_lost_fragments();
        forwarder.out.watchers.remove_gone();
        forwarder.out.icmp_replies_left = MAX_ICMP_REPLIES;
        for (port, vif) in forwarder.out.vifs() {
            let overruns = vif.device.as_mut().map_or(0, Device::new_overruns);
            vif.drops.add(DropReason::ReceiveOverrun, overruns);
            // A send has failed because the device is gone.
            if let Some(why) = vif.gone.take() {
                self.event_sender.send(WorkerEvent::PortGone(port, why));
            }
        }
    }

    fn report(&mut self) -> WorkerCounters {
        let Forwarder { endpoints, out, caches, .. } = &mut self.forwarder;
        let rows = endpoints.iter().map(|(id, remote, endpoint)| {
            let (spec, local) = endpoints.class(endpoint);
            let neighbour = match (spec.tunnel.carrier(), endpoint.resolved) {
                (Carrier::TcpLike, true) => "resolved",
                (Carrier::TcpLike, false) => "unresolved",
                _ => "kernel",
            };
            EndpointStats {
                tunnel: spec.tunnel.name().to_owned(),
                local,
                remote,
                neighbour: neighbour.to_owned(),
                refused: !endpoints.accepts(endpoint) && !remote.is_multicast(),
                path_mtu: endpoints.path_mtu(id).unwrap_or(spec.path_mtu_bytes),
                // The control thread fills it in.
                path_mtu_report: None,
                rx: endpoint.rx.into(),
                tx: endpoint.tx.into(),
            }
        });
        let rows = rows.collect();
        let (megaflows, masks, stats) = caches.totals();
        let CacheStats { lookups, exact_hits, search_hits, mask_probes } = stats;
        let ports = out.vifs().map(|(port, vif)| {
            (port, PortReport { rx: vif.rx, tx: vif.tx, drops: vif.drops.nonzero().collect() })
        });
        let ports = ports.collect();
        let (rx, tx, drops) = (out.uplink.rx, out.uplink.tx, out.uplink.drops.clone());
        WorkerCounters {
            ports,
            uplink: PortCounters { rx, tx, drops },
            endpoints: rows,
            megaflows: MegaflowStats {
                megaflows: megaflows as u64,
                masks: masks as u64,
                lookups,
                exact_hits,
                search_hits,
                mask_probes,
            },
        }
    }
}
