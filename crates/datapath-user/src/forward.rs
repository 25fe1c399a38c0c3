//! From a frame to its key, from the key to its actions, and the actions carried out. A frame whose key no megaflow
//! matches goes up.

use super::cache::Cache;
use super::token_bucket::TokenBuckets;
use super::transmit::Transmit;
use super::upcall_queue::{Backlog, UpcallQueues};
use super::uplink::Uplink;
use super::vif::Vif;
use super::watchers::Watchers;
use datapath::megaflow::MegaflowId;
use datapath::solicit::{SolicitLimits, Solicitations};
use datapath::upcall::{Answer, Upcall, UpcallReason, WorkerId};
use datapath::watch::Direction;
use flow::{
    Action, Carrier, DropReason, Encapsulated, EndpointTable, Field, FlowKey, LogRecord, Output,
    PortNo, TunnelInfo, WayBack, execute, extract,
};
use packet::PacketBuf;
use std::sync::Arc;
use std::time::Instant;
use wire::vlan::Tag;
use wire::{EtherType, MacAddr};

/// The bit of a key's TCI that says that there is a tag.
const TAG_PRESENT: u16 = 0x1000;

/// All places that frames leave by.
#[derive(Debug)]
pub(super) struct Outputs {
    /// By number.
    vifs: Vec<Option<Vif>>,
    uplink_port: PortNo,
    pub(super) uplink: Uplink,
    pub(super) transmit: Transmit,
    meters: Arc<TokenBuckets>,
    solicitations: Solicitations,
    /// The port by which the packet in hand came in: it is counted against that if it is not delivered.
    origin: PortNo,
    /// The megaflow that decides about it.
    decided_by: Option<MegaflowId>,
    pub(super) watchers: Watchers,
    /// Copies for a controller.
    controller: Vec<PacketBuf>,
    /// Packets too long for their tunnels, with the MTU that would have gone.
    too_big: Vec<(PacketBuf, u16)>,
    /// How many of these are still answered before the next tick.
    pub(super) answers_left: u32,
}

/// Answers to packets that are too long, in one tick (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 f).
pub(super) const MAX_ANSWERS: u32 = 500;

/// The megaflows, and everything their actions touch.
#[derive(Debug)]
pub(super) struct Forwarder {
    worker: WorkerId,
    pub(super) cache: Cache,
    pub(super) endpoints: EndpointTable,
    pub(super) out: Outputs,
    pub(super) now_ms: u64,
    misses: Vec<Upcall>,
    /// What waits in the queue of the port whose frames are being looked up, as far as this worker knows.
    waiting: Option<(PortNo, Backlog)>,
    upcalls: Arc<UpcallQueues>,
}

impl Forwarder {
    pub(super) fn new(
        worker: WorkerId,
        cache: Cache,
        endpoints: EndpointTable,
        out: Outputs,
        upcalls: Arc<UpcallQueues>,
    ) -> Self {
        let (misses, waiting) = (Vec::new(), None);
        Self { worker, cache, endpoints, out, now_ms: 0, misses, waiting, upcalls }
    }

    /// A frame that came in by `port`, out of the tunnel `tunnel` if it came by one.
    pub(super) fn frame(
        &mut self,
        port: PortNo,
        tunnel: Option<&TunnelInfo>,
        packet: &mut PacketBuf,
    ) {
        self.out.begin(port, None);
        let Ok(key) = extract(packet, port, tunnel) else {
            return self.out.dropped(DropReason::Malformed, packet);
        };
        match self.cache.look_up(&key, packet.len(), self.now_ms) {
            Some(hit) => {
                self.out.decided_by = Some(hit.id);
                execute(hit.actions, packet, &mut self.endpoints, &mut self.out);
                self.finish(&key, port);
            }
            None => self.missed(port, key, packet),
        }
    }

    /// Has a packet go up that no megaflow matches. Only what has room in the queue is copied: a flood is not worth it.
    fn missed(&mut self, port: PortNo, key: FlowKey, packet: &PacketBuf) {
        if !self.has_room(port, packet.len()) {
            return self.out.dropped(DropReason::UpcallQueueFull, packet);
        }
        let (packet, worker) = (packet.clone(), self.worker);
        self.misses.push(Upcall { packet, key, port, reason: UpcallReason::Miss, worker });
    }

    /// Sets room for a packet aside in the queue of its port. The queue is asked once for a batch of one port's frames: whatever is
    /// taken out of it, or put in by other workers, shows in the next.
    fn has_room(&mut self, port: PortNo, len: usize) -> bool {
        let known = self.waiting.filter(|(known, _)| *known == port);
        let (_, waiting) =
            self.waiting.insert(known.unwrap_or_else(|| (port, self.upcalls.backlog(port))));
        waiting.admit(self.upcalls.limits(), len)
    }

    /// A guest has sent a frame: for who looks on.
    pub(super) fn show_sent(&mut self, port: PortNo, packet: &PacketBuf) {
        if !self.out.watchers.is_empty() {
            self.out.watchers.frame(port, Direction::FromGuest, packet);
        }
    }

    /// Puts the megaflow of an answer, and sends its packet.
    pub(super) fn answered(&mut self, mut answer: Answer) {
        if let Some(megaflow) = &answer.megaflow {
            // Where there is no room the packets that follow come up, too.
            let _ = self.cache.put(megaflow);
        }
        let Upcall { packet, port, .. } = &mut answer.upcall;
        self.out.begin(*port, answer.decided_by);
        execute(&answer.actions, packet, &mut self.endpoints, &mut self.out);
        self.finish(&answer.upcall.key, answer.upcall.port);
    }

    /// Drops a packet that came in by `port` and is not looked at any further.
    pub(super) fn refuse(&mut self, port: PortNo, reason: DropReason, packet: &PacketBuf) {
        self.out.begin(port, None);
        self.out.dropped(reason, packet);
    }

    /// Executes actions on a packet as if it had come in by `port`.
    pub(super) fn execute(&mut self, port: PortNo, packet: &mut PacketBuf, actions: &[Action]) {
        self.out.begin(port, None);
        // What its sender may have to be told, and a controller is told.
        let Ok(key) = extract(packet, port, None) else {
            return self.out.dropped(DropReason::Malformed, packet);
        };
        execute(actions, packet, &mut self.endpoints, &mut self.out);
        self.finish(&key, port);
    }

    /// Does what is left to be done after the actions: rarely anything.
    #[inline]
    fn finish(&mut self, key: &FlowKey, port: PortNo) {
        if !self.out.controller.is_empty() {
            self.hand_to_controller(key, port);
        }
        if !self.out.too_big.is_empty() {
            self.out.tell_sender(key, port);
        }
    }

    #[cold]
    fn hand_to_controller(&mut self, key: &FlowKey, port: PortNo) {
        let worker = self.worker;
        let copies = self.out.controller.drain(..).map(|packet| Upcall {
            packet,
            key: key.clone(),
            port,
            reason: UpcallReason::Controller,
            worker,
        });
        self.misses.extend(copies);
    }

    /// Hands up what no megaflow matched: once for a batch of frames.
    pub(super) fn flush(&mut self) {
        self.waiting = None;
        let out = &mut self.out;
        self.upcalls.push(&mut self.misses, |upcall| {
            // A controller misses a copy; the packet itself is not lost.
            if upcall.reason == UpcallReason::Miss {
                out.begin(upcall.port, None);
                out.dropped(DropReason::UpcallQueueFull, &upcall.packet);
            }
        });
    }

    /// Counts a packet from the underlay that is no frame of any logical switch.
    pub(super) fn dropped(&mut self, reason: DropReason) {
        self.out.uplink.drops.add(reason, 1);
    }
}

impl Outputs {
    pub(super) fn new(
        uplink_port: PortNo,
        meters: Arc<TokenBuckets>,
        limits: SolicitLimits,
    ) -> Self {
        Self {
            vifs: Vec::new(),
            uplink_port,
            uplink: Uplink::new(),
            transmit: Transmit::new(),
            meters,
            solicitations: Solicitations::new(limits),
            origin: uplink_port,
            decided_by: None,
            watchers: Watchers::default(),
            controller: Vec::new(),
            too_big: Vec::new(),
            answers_left: MAX_ANSWERS,
        }
    }

    /// Begins with another packet.
    fn begin(&mut self, port: PortNo, decided_by: Option<MegaflowId>) {
        (self.origin, self.decided_by) = (port, decided_by);
    }

    /// Tells the guest that sent packets which are too long.
    #[cold]
    fn tell_sender(&mut self, key: &FlowKey, port: PortNo) {
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
        let back =
            WayBack { eth_dst: mac(Field::EthSrc), eth_src: mac(Field::EthDst), tags: &tags };
        for (packet, mtu) in std::mem::take(&mut self.too_big) {
            // Packets about which nothing may be said are counted as dropped, and that is all.
            if let Ok(mut answer) = flow::too_big(&packet, mtu, &back)
                && let Err(reason) = self.port(port, &mut answer)
            {
                self.dropped(reason, &answer);
            }
        }
    }

    pub(super) fn uplink_port(&self) -> PortNo {
        self.uplink_port
    }

    /// The port of that number, if there is one.
    pub(super) fn vif(&mut self, port: PortNo) -> Option<&mut Vif> {
        self.vifs.get_mut(port.0 as usize)?.as_mut()
    }

    /// The port of that number, made if need be.
    pub(super) fn vif_or_new(&mut self, port: PortNo) -> &mut Vif {
        let index = port.0 as usize;
        if self.vifs.len() <= index {
            self.vifs.resize_with(index + 1, || None);
        }
        self.vifs[index].get_or_insert_default()
    }

    pub(super) fn remove_vif(&mut self, port: PortNo) {
        if let Some(vif) = self.vifs.get_mut(port.0 as usize) {
            *vif = None;
        }
        self.solicitations.forget(port);
    }

    /// All ports.
    pub(super) fn vifs(&mut self) -> impl Iterator<Item = (PortNo, &mut Vif)> {
        let numbered = (0..).map(PortNo).zip(&mut self.vifs);
        numbered.filter_map(|(port, vif)| Some((port, vif.as_mut()?)))
    }
}

impl Output for Outputs {
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
        if port == self.uplink_port {
            return self.uplink.send_tagged(packet);
        }
        if !self.watchers.is_empty() {
            self.watchers.frame(port, Direction::ToGuest, packet);
        }
        self.vif(port).ok_or(DropReason::NoSuchPort)?.send(packet)
    }

    fn underlay(&mut self, outer: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason> {
        match outer.carrier {
            Carrier::Udp => self.transmit.udp(outer, packet),
            Carrier::Gre => self.transmit.gre(outer, packet),
            Carrier::TcpShaped => self.uplink.send_stt(outer, packet),
            Carrier::Tags => Err(DropReason::NoSuchPort),
        }
    }

    fn too_big(&mut self, packet: &PacketBuf, mtu: u16) {
        // What came out of a tunnel has no sender here; and what cannot be cut has not one that could be told.
        if self.answers_left == 0 || self.vif(self.origin).is_none() {
            return;
        }
        if let Ok(first) = packet::first_segment(packet) {
            self.answers_left -= 1;
            self.too_big.push((first, mtu));
        }
    }

    fn dropped(&mut self, reason: DropReason, packet: &PacketBuf) {
        if !self.watchers.is_empty() {
            self.watchers.dropped(self.origin, reason, self.decided_by, packet);
        }
        match self.vif(self.origin) {
            Some(vif) => vif.drops.add(reason, 1),
            None => self.uplink.drops.add(reason, 1),
        }
    }

    fn meter(&mut self, rate_kbps: u64, burst_kb: u64, packet: &PacketBuf) -> bool {
        self.meters.passes((rate_kbps, burst_kb), packet.len(), Instant::now())
    }

    fn solicit(&mut self, solicitation: &PacketBuf, first: &Action) -> Result<(), DropReason> {
        self.solicitations.admit(self.origin, (solicitation.head(), first), Instant::now())
    }

    fn log(&mut self, record: &Arc<LogRecord>, packet: &PacketBuf) {
        // Rules that are to log much are given a meter, as in OVN.
        let LogRecord { name, priority, verdict } = &**record;
        let Ok(packet) = extract(packet, self.origin, None) else { return };
        tracing::info!(target: "acl", %name, ?verdict, severity = ?priority, %packet);
    }

    fn controller(&mut self, packet: &PacketBuf) {
        self.controller.push(packet.clone());
    }
}
