//! The user datapath: threads that move frames between guests' devices and the underlay.
//!
//! The path of a frame through the modules:
//!
//! - **From a guest:** a [`worker`] receives it from its [`device`]; [`forward`] extracts its flow
//!   key, looks it up in the [`cache`] and executes the actions; [`transmit`] sends it to the
//!   underlay.
//! - **From the underlay:** [`receive`] ([`stt`] for STT, [`uplink`] for VLAN tags) decapsulates it
//!   and coalesces segments; [`forward`] looks it up; [`vif`] sends it to the guest.
//! - **Through the connection tracker:** [`passes`] tracks the frame, and looks it up again.
//! - **Without a megaflow:** it becomes an upcall ([`upcall_queue`]) and comes back with an answer.
//!   The processor time for that is limited for each port ([`cpu_budget`]).
//!
//! [`control`] runs on a thread of its own, so that no frame waits for it. It opens devices
//! ([`port`]), follows the uplink ([`uplink_watch`]), resolves next hops ([`resolve`]) and tracks
//! path MTUs ([`path_mtu`]). [`mailbox`] carries its requests, and those of other threads, to the
//! workers.
//!
//! eBPF programs may run in front of this datapath ([`fast_path`]). They punt to it the packets
//! that they do not forward themselves.
//!
//! A worker owns all state that a packet touches, so its path takes no lock. The exception is
//! connection tracking: the two directions of a connection may arrive at different workers. Frames
//! of one port or one tunnel socket keep their order.
#![forbid(unsafe_code)]

mod busy_poll;
pub mod cache;
mod control;
mod counter_delta;
mod cpu_budget;
mod device;
mod device_closer;
pub mod fast_path;
mod forward;
mod log_meter;
mod mailbox;
mod named_meter;
mod pass_caches;
mod passes;
mod path_mtu;
mod port;
mod provider;
mod punting_programs;
mod read_budget;
mod receive;
mod resolve;
mod segment_limit;
mod segmented_send;
mod stt;
mod token_bucket;
mod transmit;
mod upcall_queue;
mod uplink;
mod uplink_watch;
mod vif;
mod watchers;
mod worker;

pub use provider::{SetupError, UserDatapath};
pub use segment_limit::{SHORT_SEGMENTS_BURST, SHORT_SEGMENTS_PER_SECOND};

use netdev::af_packet::VlanTag;
use netdev::epoll::Waker;
use packet::PacketBuf;
use read_budget::BATCH;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use wire::EtherType;
use wire::vlan::Tag;

/// How often missing devices are looked for and kernel counters are read.
const TICK: Duration = Duration::from_millis(500);

/// An event that a worker reports to the control thread.
#[derive(Debug)]
enum WorkerEvent {
    /// The device of a port has vanished, and why.
    PortGone(flow::PortNo, String),
}

/// A worker's sender of events to the control thread.
#[derive(Clone, Debug)]
struct WorkerEventSender {
    sender: Sender<WorkerEvent>,
    waker: Arc<Waker>,
}

impl WorkerEventSender {
    fn send(&self, event: WorkerEvent) {
        // Fails only while the datapath shuts down.
        let _ = self.sender.send(event);
        self.waker.wake();
    }
}

/// Puts a VLAN tag that the kernel delivers as metadata (`PACKET_AUXDATA`) back into the frame. A
/// frame too short for that is emptied, which later drops it as malformed: without its tag, it
/// would belong to another network.
fn restore_tag(packet: &mut PacketBuf, tag: VlanTag) {
    if flow::push_vlan(packet, Tag::from_tci(EtherType(tag.tpid), tag.tci)).is_err() {
        packet.set_len(0);
    }
}
