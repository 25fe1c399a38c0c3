//! The reference executor: rewriting, replies, and lists in lists.

mod frames;
mod lists;
mod mss;
mod reply;
mod serve;
mod set;
mod too_big;

use flow::{
    Action, ActionOutput, DropReason, Encapsulated, EndpointTable, LogRecord, PortNo, execute,
};
use packet::PacketBuf;
use std::sync::Arc;

/// The operations of an executor, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Event {
    /// The bytes of a frame sent out of a port.
    Port(u32, Vec<u8>),
    Drop(DropReason),
    Log(String),
    Controller,
    Meter(u64, u64),
    Queue(u32),
    /// The bytes of a solicitation, and the first action on it.
    Solicit(Vec<u8>, Action),
}

/// Records every call.
#[derive(Default)]
struct Recorder {
    events: Vec<Event>,
    packets: Vec<PacketBuf>,
    /// True when every frame exceeds its meter.
    exceeded: bool,
    /// True when `solicit` rejects the solicitation because one was just sent.
    asked: bool,
    /// The error that all ports return.
    refuse: Option<DropReason>,
}

impl ActionOutput for Recorder {
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
        self.refuse.map_or(Ok(()), Err)?;
        self.events.push(Event::Port(port.0, packet.to_vec()));
        self.packets.push(packet.clone());
        Ok(())
    }

    fn underlay(&mut self, _: &Encapsulated, _: &mut PacketBuf) -> Result<(), DropReason> {
        Err(DropReason::NoSuchPort)
    }

    fn dropped(&mut self, reason: DropReason, _: &PacketBuf) {
        self.events.push(Event::Drop(reason));
    }

    fn log(&mut self, record: &Arc<LogRecord>, _: &PacketBuf) {
        self.events.push(Event::Log(record.name.clone()));
    }

    fn controller(&mut self, _: &PacketBuf) {
        self.events.push(Event::Controller);
    }

    fn meter(&mut self, rate_kbps: u64, burst_kb: u64, _: &PacketBuf) -> bool {
        self.events.push(Event::Meter(rate_kbps, burst_kb));
        !self.exceeded
    }

    fn solicit(&mut self, solicitation: &PacketBuf, first: &Action) -> Result<(), DropReason> {
        self.events.push(Event::Solicit(solicitation.to_vec(), first.clone()));
        if self.asked { Err(DropReason::NeighbourAsked) } else { Ok(()) }
    }

    fn queue(&mut self, queue: u32) {
        self.events.push(Event::Queue(queue));
    }
}

impl Recorder {
    fn run(mut self, actions: &[Action], packet: &mut PacketBuf) -> Self {
        execute(actions, packet, &mut EndpointTable::new(49_152, 1), &mut self);
        self
    }
}
