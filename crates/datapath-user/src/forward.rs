//! Forwards one frame: extracts its flow key, looks up its megaflow, and executes the actions. A
//! frame without a megaflow becomes an upcall.

use super::device::Device;
use super::log_meter::LogMeters;
use super::named_meter::NamedMeters;
use super::pass_caches::PassCaches;
use super::passes::Passes;
use super::token_bucket::TokenBuckets;
use super::transmit::Transmit;
use super::upcall_queue::{Backlog, UpcallQueues};
use super::uplink::Uplink;
use super::vif::Vif;
use super::watchers::Watchers;
use datapath::megaflow::MegaflowId;
use datapath::solicit::{SolicitLimits, Solicitations};
use datapath::tracker::Tracker;
use datapath::upcall::{Answer, FuseProposal, Recirculated, Upcall, UpcallReason, WorkerId};
use datapath::watch::CaptureDirection;
use flow::{
    Action, ActionOutput, Carrier, CtAction, CtProgress, DropReason, Encapsulated, EndpointTable,
    Field, FlowKey, LogRecord, NamedMeter, OuterHeaders, OvsText, PortNo, ReplyAddresses,
    TAG_PRESENT, TunnelInfo, execute, extract,
};
use packet::PacketBuf;
use std::sync::Arc;
use std::time::Instant;
use wire::vlan::Tag;
use wire::{EtherType, MacAddr};

/// All outputs for frames, and the context of the frame that is being forwarded.
#[derive(Debug)]
pub(super) struct FrameOutputs {
    /// The local ports, indexed by number.
    vifs: Vec<Option<Vif>>,
    uplink_port: PortNo,
    pub(super) uplink: Uplink,
    pub(super) transmit: Transmit,
    meters: Arc<TokenBuckets>,
    log_meters: Arc<LogMeters>,
    named_meters: Arc<NamedMeters>,
    solicitations: Solicitations,
    /// The ingress port of the current packet: a drop is counted there.
    ingress: PortNo,
    /// The megaflow of the current packet.
    pub(super) decided_by: Option<MegaflowId>,
    pub(super) watchers: Watchers,
    /// True when something was queued in `controller`, `too_big` or `passes`.
    pub(super) has_queued: bool,
    /// The later passes of the current packet.
    pub(super) passes: Passes,
    pub(super) tracker: Arc<Tracker>,
    /// Copies of the current packet for the controller.
    controller: Vec<PacketBuf>,
    /// Copies of the current packet that exceeded a path MTU in bytes, each with that MTU.
    too_big: Vec<(PacketBuf, u16)>,
    /// The ICMP messages about such packets that may still be sent before the next tick.
    pub(super) icmp_replies_left: u32,
}

/// The most ICMP "packet too big" messages in one tick (RFC 1812 section 4.3.2.8, RFC 4443 section
/// 2.4 f).
pub(super) const MAX_ICMP_REPLIES: u32 = 500;

/// The megaflow cache of a worker, and everything that actions need.
#[derive(Debug)]
pub(super) struct Forwarder {
    worker: WorkerId,
    pub(super) caches: PassCaches,
    pub(super) endpoints: EndpointTable,
    pub(super) out: FrameOutputs,
    pub(super) now_ms: u64,
    misses: Vec<Upcall>,
    /// How many packets had no megaflow so far. It wraps around.
    missed: u32,
    /// How many of those found no room in their upcall queue. It wraps around.
    refused: u32,
    /// The upcall backlog of the port whose frames are being forwarded, as this worker last read
    /// it, and why a packet finds no room there.
    backlog: Option<(PortNo, Backlog, DropReason)>,
    pub(super) upcalls: Arc<UpcallQueues>,
}

impl Forwarder {
    pub(super) fn new(
        worker: WorkerId,
        caches: PassCaches,
        endpoints: EndpointTable,
        out: FrameOutputs,
        upcalls: Arc<UpcallQueues>,
    ) -> Self {
        let (misses, missed, refused, backlog) = (Vec::new(), 0, 0, None);
        Self {
            worker,
            caches,
            endpoints,
            out,
            now_ms: 0,
            misses,
            missed,
            refused,
            backlog,
            upcalls,
        }
    }

    /// Forwards a frame that arrived by `port`, and by `tunnel` if it was encapsulated.
    pub(super) fn forward(
        &mut self,
        port: PortNo,
        tunnel: Option<&TunnelInfo>,
        packet: &mut PacketBuf,
    ) {
        self.out.begin(port, None);
        let key = match extract(packet, port, tunnel) {
            Ok(key) => key,
            Err(error) => return self.out.dropped(DropReason::of_invalid_frame(error), packet),
        };
        match self.caches.first.look_up(&key, packet.len(), self.now_ms) {
            Some(hit) => {
                self.out.decided_by = Some(hit.id);
                execute(hit.actions, packet, &mut self.endpoints, &mut self.out);
                self.finish(&key, port, packet);
            }
            None => self.raise_upcall(port, key, packet, None),
        }
    }

    /// Raises an upcall for a packet without a megaflow. If the port's queue is full, the packet is
    /// dropped before it is copied, so that a flood stays cheap.
    pub(super) fn raise_upcall(
        &mut self,
        port: PortNo,
        key: FlowKey,
        packet: &PacketBuf,
        recirculated: Option<Box<Recirculated>>,
    ) {
        self.missed = self.missed.wrapping_add(1);
        if let Err(reason) = self.take_room(port, packet) {
            self.refused = self.refused.wrapping_add(1);
            return self.out.dropped(reason, packet);
        }
        let (packet, worker, reason) = (packet.clone(), self.worker, UpcallReason::Miss);
        let raised = Instant::now();
        self.misses.push(Upcall { packet, key, port, reason, worker, raised, recirculated });
    }

    /// Proposes to the switch to fuse the passes of packets with this key, if there is room in the
    /// port's upcall queue.
    pub(super) fn raise_fuse_proposal(
        &mut self,
        port: PortNo,
        key: &FlowKey,
        proposal: Box<FuseProposal>,
    ) {
        let packet = PacketBuf::from_bytes(&[]);
        if self.take_room(port, &packet).is_err() {
            return;
        }
        self.misses.push(Upcall {
            packet,
            key: key.clone(),
            port,
            reason: UpcallReason::Fuse(proposal),
            worker: self.worker,
            raised: Instant::now(),
            recirculated: None,
        });
    }

    /// Takes room for a packet in its port's upcall queue. The backlog is read once for each
    /// batch of a port's frames; what other threads add or take meanwhile is seen in the next
    /// batch.
    ///
    /// # Errors
    /// There is no room, and why.
    fn take_room(&mut self, port: PortNo, packet: &PacketBuf) -> Result<(), DropReason> {
        let known = self.backlog.filter(|(known, ..)| *known == port);
        let (_, backlog, refusal) = self.backlog.insert(known.unwrap_or_else(|| {
            let refusal = self.upcalls.budgets.refusal(port, Instant::now());
            (port, self.upcalls.backlog(port), refusal)
        }));
        match backlog.admit(self.upcalls.limits(), packet) {
            true => Ok(()),
            false => Err(*refusal),
        }
    }

    /// How many packets had no megaflow so far, and how many of them found no room in their upcall
    /// queue. Both numbers wrap around.
    pub(super) const fn misses(&self) -> (u32, u32) {
        (self.missed, self.refused)
    }

    /// Copies a frame that a guest has sent to the observers of its port.
    pub(super) fn copy_to_watchers(&mut self, port: PortNo, packet: &PacketBuf) {
        if !self.out.watchers.is_empty() {
            self.out.watchers.frame(port, CaptureDirection::FromGuest, packet);
        }
    }

    /// Installs the megaflow of an answer, then executes its actions on its packet.
    pub(super) fn handle_answer(&mut self, mut answer: Answer) {
        if let Some(megaflow) = &answer.megaflow {
            // If the cache is full, later packets raise upcalls as well.
            let _ = self.caches.put(megaflow);
        }
        let Upcall { packet, port, key, recirculated, .. } = &mut answer.upcall;
        self.out.begin(*port, answer.decided_by);
        if let Some(recirculated) = recirculated.take() {
            self.out.passes.begin(Some(*recirculated));
            // Makes `finish` reset the passes, so that the tracking result does not stay for the
            // next packet.
            self.out.has_queued = true;
        }
        execute(&answer.actions, packet, &mut self.endpoints, &mut self.out);
        self.finish(key, *port, packet);
    }

    /// Drops a packet that arrived by `port`.
    pub(super) fn drop_packet(&mut self, port: PortNo, reason: DropReason, packet: &PacketBuf) {
        self.out.begin(port, None);
        self.out.dropped(reason, packet);
    }

    /// Executes actions on a packet as if it had arrived by `port`.
    pub(super) fn execute(&mut self, port: PortNo, packet: &mut PacketBuf, actions: &[Action]) {
        self.out.begin(port, None);
        // ICMP messages to the sender and copies to the controller need the key.
        let key = match extract(packet, port, None) {
            Ok(key) => key,
            Err(error) => return self.out.dropped(DropReason::of_invalid_frame(error), packet),
        };
        execute(actions, packet, &mut self.endpoints, &mut self.out);
        self.finish(&key, port, packet);
    }

    /// Sends what the actions have queued for the controller and for the packet's sender, and runs
    /// later passes.
    #[inline]
    fn finish(&mut self, key: &FlowKey, port: PortNo, packet: &mut PacketBuf) {
        if std::mem::take(&mut self.out.has_queued) {
            self.send_queued(key, port);
            self.run_passes(key, port, packet);
        }
    }

    /// Sends what the actions have queued for the controller and for the packet's sender.
    #[cold]
    pub(super) fn send_queued(&mut self, key: &FlowKey, port: PortNo) {
        if !self.out.controller.is_empty() {
            self.copy_to_controller(key, port);
        }
        if !self.out.too_big.is_empty() {
            self.out.send_too_big(key, port);
        }
    }

    #[cold]
    fn copy_to_controller(&mut self, key: &FlowKey, port: PortNo) {
        let worker = self.worker;
        let copies = self.out.controller.drain(..).map(|packet| Upcall {
            packet,
            key: key.clone(),
            port,
            reason: UpcallReason::Controller,
            worker,
            raised: Instant::now(),
            recirculated: None,
        });
        self.misses.extend(copies);
    }

    /// Queues the upcalls of a batch of frames.
    pub(super) fn flush_upcalls(&mut self) {
        self.backlog = None;
        let (out, upcalls) = (&mut self.out, &self.upcalls);
        upcalls.push(&mut self.misses, |upcall| {
            if let Some(upcall) = upcalls.discard(upcall) {
                let reason = upcalls.budgets.refusal(upcall.port, Instant::now());
                out.begin(upcall.port, None);
                out.dropped(reason, &upcall.packet);
            }
        });
    }

    /// Counts a packet from the underlay that was dropped before it had an ingress port.
    pub(super) fn count_uplink_drop(&mut self, reason: DropReason) {
        self.out.uplink.drops.add(reason, 1);
    }
}

impl FrameOutputs {
    pub(super) fn new(
        uplink_port: PortNo,
        (meters, log_meters, named_meters): (Arc<TokenBuckets>, Arc<LogMeters>, Arc<NamedMeters>),
        limits: SolicitLimits,
        tracker: Arc<Tracker>,
    ) -> Self {
        Self {
            vifs: Vec::new(),
            uplink_port,
            uplink: Uplink::new(),
            transmit: Transmit::new(),
            meters,
            log_meters,
            named_meters,
            solicitations: Solicitations::new(limits),
            ingress: uplink_port,
            decided_by: None,
            watchers: Watchers::default(),
            has_queued: false,
            passes: Passes::default(),
            tracker,
            controller: Vec::new(),
            too_big: Vec::new(),
            icmp_replies_left: MAX_ICMP_REPLIES,
        }
    }

    /// Sets the context of the next packet.
    pub(super) fn begin(&mut self, port: PortNo, decided_by: Option<MegaflowId>) {
        (self.ingress, self.decided_by) = (port, decided_by);
    }

    /// Sends ICMP "packet too big" (or "fragmentation needed") to the guest that sent the current
    /// packet.
    #[cold]
    fn send_too_big(&mut self, key: &FlowKey, port: PortNo) {
        let mac = |field| {
            let [_, _, octets @ ..] = (key.get(field) as u64).to_be_bytes();
            MacAddr(octets)
        };
        let tag = |tpid, tci| {
            let (tpid, tci) = (key.get(tpid) as u16, key.get(tci) as u16);
            (tci != 0).then(|| Tag::from_tci(EtherType(tpid), tci & !TAG_PRESENT))
        };
        let tags =
            [tag(Field::VlanTpid, Field::VlanTci), tag(Field::VlanInnerTpid, Field::VlanInnerTci)];
        let tags: Vec<Tag> = tags.into_iter().flatten().collect();
        let back = ReplyAddresses {
            eth_dst: mac(Field::EthSrc),
            eth_src: mac(Field::EthDst),
            tags: &tags,
        };
        for (packet, mtu) in std::mem::take(&mut self.too_big) {
            // `flow::too_big` fails for packets about which no ICMP error may be sent (RFC 1122,
            // 3.2.2).
            if let Ok(mut answer) = flow::too_big(&packet, mtu, &back)
                && let Err(reason) = self.port(port, &mut answer)
            {
                self.dropped(reason, &answer);
            }
        }
    }

    /// Counts held fragments that were dropped.
    pub(super) fn count_lost_fragments(&mut self) {
        let tracker = Arc::clone(&self.tracker);
        tracker.expire_fragments(|port, reason, count| {
            let drops = match self.vif(port) {
                Some(vif) => &mut vif.drops,
                None => &mut self.uplink.drops,
            };
            drops.add(reason, count);
        });
    }

    pub(super) fn uplink_port(&self) -> PortNo {
        self.uplink_port
    }

    /// The local port of that number, if it exists.
    pub(super) fn vif(&mut self, port: PortNo) -> Option<&mut Vif> {
        self.vifs.get_mut(port.0 as usize)?.as_mut()
    }

    /// The local port of that number, added if it does not exist.
    pub(super) fn vif_or_new(&mut self, port: PortNo) -> &mut Vif {
        let index = port.0 as usize;
        if self.vifs.len() <= index {
            self.vifs.resize_with(index + 1, || None);
        }
        self.vifs[index].get_or_insert_default()
    }

    /// Lets routers request every neighbour again at once.
    pub(super) fn forget_solicitations(&mut self) {
        self.solicitations.forget_all();
    }

    /// Removes a local port and returns its device.
    pub(super) fn remove_vif(&mut self, port: PortNo) -> Option<Device> {
        self.solicitations.forget(port);
        self.vifs.get_mut(port.0 as usize)?.take()?.device
    }

    /// All local ports.
    pub(super) fn vifs(&mut self) -> impl Iterator<Item = (PortNo, &mut Vif)> {
        let numbered = (0..).map(PortNo).zip(&mut self.vifs);
        numbered.filter_map(|(port, vif)| Some((port, vif.as_mut()?)))
    }
}

impl ActionOutput for FrameOutputs {
    const OUTER_HEADERS: OuterHeaders = OuterHeaders::BehindSocket;

    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
        if port == self.uplink_port {
            self.uplink.check_link()?;
            return self.uplink.send_tagged(packet);
        }
        if !self.watchers.is_empty() {
            self.watchers.frame(port, CaptureDirection::ToGuest, packet);
        }
        self.vif(port).ok_or(DropReason::NoSuchPort)?.send(packet)
    }

    fn underlay(&mut self, outer: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason> {
        self.uplink.check_link()?;
        match outer.carrier {
            Carrier::Udp => self.transmit.send_udp(outer, packet),
            Carrier::Gre => self.transmit.send_gre(outer, packet),
            Carrier::TcpLike => self.uplink.send_stt(outer, packet),
            Carrier::Tags => Err(DropReason::NoSuchPort),
        }
    }

    fn too_big(&mut self, packet: &PacketBuf, mtu: u16) {
        // The sender of a packet from a tunnel is not on this host.
        if self.icmp_replies_left == 0 || self.vif(self.ingress).is_none() {
            return;
        }
        if let Ok(first) = packet::first_segment(packet) {
            self.icmp_replies_left -= 1;
            self.too_big.push((first, mtu));
            self.has_queued = true;
        }
    }

    fn dropped(&mut self, reason: DropReason, packet: &PacketBuf) {
        if !self.watchers.is_empty() {
            self.watchers.dropped(self.ingress, reason, self.decided_by, packet);
        }
        match self.vif(self.ingress) {
            Some(vif) => vif.drops.add(reason, 1),
            None => self.uplink.drops.add(reason, 1),
        }
    }

    fn meter(&mut self, rate_kbps: u64, burst_kb: u64, packet: &PacketBuf) -> bool {
        let len = packet::total_wire_len(packet);
        self.meters.passes((rate_kbps, burst_kb), len, Instant::now())
    }

    fn named_meter(&mut self, meter: &NamedMeter, packet: &PacketBuf) -> bool {
        self.named_meters.allows(meter, packet::total_wire_len(packet), Instant::now())
    }

    fn solicit(&mut self, solicitation: &PacketBuf, first: &Action) -> Result<(), DropReason> {
        self.solicitations.admit(self.ingress, (solicitation.head(), first), Instant::now())
    }

    fn log(&mut self, record: &Arc<LogRecord>, packet: &PacketBuf) {
        if !self.log_meters.admit(record, packet::total_wire_len(packet), Instant::now()) {
            return;
        }
        let LogRecord { name, priority, verdict, is_from_lport, .. } = &**record;
        let Ok(packet) = extract(packet, self.ingress, None) else { return };
        // The log format of ovn-controller, which other programs read.
        let name = if name.is_empty() { "<unnamed>" } else { name };
        let direction = if *is_from_lport { "from-lport" } else { "to-lport" };
        messages::log!(
            ACL_RECORD,
            target: "acl",
            "name={name:?}, verdict={}, severity={}, direction={direction}: {}",
            verdict.name(),
            priority.name(),
            OvsText(&packet)
        );
    }

    fn controller(&mut self, packet: &PacketBuf) {
        self.controller.push(packet.clone());
        self.has_queued = true;
    }

    fn track(
        &mut self,
        action: &Arc<CtAction>,
        packet: &mut PacketBuf,
        is_last: bool,
    ) -> Result<CtProgress, DropReason> {
        if self.tracker.reassemble(action.zone, self.ingress, packet)? == CtProgress::Held {
            return Ok(CtProgress::Held);
        }
        self.has_queued = true;
        self.passes.track((&self.tracker, self.ingress), action, packet, is_last)?;
        Ok(CtProgress::Done)
    }
}
