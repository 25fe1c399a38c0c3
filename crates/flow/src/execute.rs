//! The reference executor, which defines the meaning of an action list.

use crate::send::TunnelSender;
use crate::{
    Action, CtAction, DropReason, Encapsulated, EndpointTable, Field, LogRecord, NamedMeter,
    OuterHeaders, PortNo, Reply, answer, rewrite,
};
use packet::{PacketBuf, longest_frame, refragment};
use std::sync::Arc;
use wire::{EtherType, vlan};

/// The largest nesting depth of action lists. Translations never nest deeper; a deeper list from
/// elsewhere ends in a drop.
pub const MAX_NESTING: usize = 64;

/// Receives the frames from the executor. A frame is lent only for the duration of the call,
/// because later actions use the same frame.
pub trait ActionOutput {
    /// Sends the frame out of `port`.
    ///
    /// # Errors
    /// The drop reason that the executor counts.
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason>;

    /// The outer headers that [`ActionOutput::underlay`] expects in front of a frame. By default
    /// these are all.
    const OUTER_HEADERS: OuterHeaders = OuterHeaders::All;

    /// Sends an encapsulated frame to the underlay. `packet` begins with the first of the
    /// [`OUTER_HEADERS`](ActionOutput::OUTER_HEADERS).
    ///
    /// # Errors
    /// The drop reason that the executor counts.
    fn underlay(&mut self, outer: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason>;

    /// Tells the sender of a frame that it is too long for its tunnel. `mtu` is the longest IP
    /// packet that would fit. The executor also counts a drop. The default implementation sends
    /// nothing.
    fn too_big(&mut self, packet: &PacketBuf, mtu: u16) {
        let _ = (packet, mtu);
    }

    /// Counts a frame that is not delivered.
    fn dropped(&mut self, reason: DropReason, packet: &PacketBuf);

    /// Writes a log record about the frame. The default implementation discards it.
    fn log(&mut self, record: &Arc<LogRecord>, packet: &PacketBuf) {
        let _ = (record, packet);
    }

    /// Sends a copy of the frame to a controller. The default implementation has none.
    fn controller(&mut self, packet: &PacketBuf) {
        let _ = packet;
    }

    /// Polices the frame with a token bucket. Returns whether the frame conforms, and takes its
    /// bits from the bucket if so.
    ///
    /// Meters with equal `rate_kbps` (kilobits per second) and `burst_kb` (kilobits) share a
    /// bucket. With the default implementation every frame conforms.
    fn meter(&mut self, rate_kbps: u64, burst_kb: u64, packet: &PacketBuf) -> bool {
        let _ = (rate_kbps, burst_kb, packet);
        true
    }

    /// Polices the frame with a named meter; returns whether the meter allows the frame. With the
    /// default implementation, all frames are allowed.
    fn named_meter(&mut self, meter: &NamedMeter, packet: &PacketBuf) -> bool {
        let _ = (meter, packet);
        true
    }

    /// Decides whether a router may send [`Reply::Arp`] or
    /// [`Reply::NeighbourSolicit`] now.
    ///
    /// The rate of solicitations must be limited, because packets may arrive much faster than
    /// neighbours answer (RFC 1122 section 2.3.2.1, RFC 4861 section 7.2.2). `solicitation` is the
    /// frame to be sent. `first` is its first action: the destination identifies the logical
    /// switch, because several switches may use the same addresses. The default implementation
    /// always allows it.
    ///
    /// # Errors
    /// The drop reason that the executor counts for the packet that caused the solicitation.
    fn solicit(&mut self, solicitation: &PacketBuf, first: &Action) -> Result<(), DropReason> {
        let _ = (solicitation, first);
        Ok(())
    }

    /// Passes the frame through the connection tracker. If the action names a recirculation, the
    /// frame, or a copy of it, begins its next pass after this list. `is_last` is true when no
    /// other action uses the frame after this one, so that no copy is needed. The default
    /// implementation has no tracker.
    ///
    /// A fragment is held until its datagram is complete. The last fragment to arrive becomes the
    /// datagram, to which the actions that follow apply.
    ///
    /// # Errors
    /// The drop reason that the executor counts; the list ends.
    fn track(
        &mut self,
        action: &Arc<CtAction>,
        packet: &mut PacketBuf,
        is_last: bool,
    ) -> Result<CtProgress, DropReason> {
        let _ = (action, packet, is_last);
        Err(DropReason::CtUnavailable)
    }

    /// Sets the transmit queue for the outputs that follow. It is 0 when [`execute`] begins, and
    /// the executor resets it to 0 at the end. The default implementation has only one queue.
    fn queue(&mut self, queue: u32) {
        let _ = queue;
    }
}

/// The result of passing a frame through the connection tracker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CtProgress {
    /// The action list continues.
    Done,
    /// The frame is a fragment and is held: the list ends, and no drop is counted.
    Held,
}

/// Executes `actions` in order on `packet`.
///
/// A failed output is counted and the list continues: a full port must not block the other ports of
/// a broadcast. When an action cannot modify the frame as required, its list ends, because later
/// actions expect the modified frame.
pub fn execute(
    actions: &[Action],
    packet: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl ActionOutput,
) {
    if run(actions, packet, endpoints, output, ExecContext { depth: 0, queue: 0 }) != 0 {
        output.queue(0);
    }
}

/// The execution state that nested action lists inherit.
#[derive(Clone, Copy)]
struct ExecContext {
    /// Nesting depth of the list.
    depth: usize,
    /// The transmit queue.
    queue: u32,
}

/// The next step of the executor after an action.
enum NextStep<'a> {
    /// Continue with the next action.
    Continue,
    /// Count this drop and continue with the next action.
    Refused(DropReason),
    /// Count this drop and end the list.
    End(DropReason),
    /// Continue with another list.
    Branch(&'a [Action]),
    /// Pass the frame through the connection tracker, then continue with the next action.
    Track(&'a Arc<CtAction>),
}

fn or_refuse<'a>(done: Result<(), DropReason>) -> NextStep<'a> {
    done.map_or_else(NextStep::Refused, |()| NextStep::Continue)
}

fn or_end<'a>(done: Result<(), DropReason>) -> NextStep<'a> {
    done.map_or_else(NextStep::End, |()| NextStep::Continue)
}

/// Executes one list, and returns the transmit queue that it selected last.
fn run(
    actions: &[Action],
    packet: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl ActionOutput,
    mut context: ExecContext,
) -> u32 {
    let mut rest = actions.iter();
    while let Some(action) = rest.next() {
        match step(action, packet, endpoints, output, &mut context) {
            NextStep::Continue => {}
            NextStep::Refused(reason) => output.dropped(reason, packet),
            NextStep::End(reason) => {
                output.dropped(reason, packet);
                break;
            }
            NextStep::Branch(list) => rest = list.iter(),
            NextStep::Track(action) => {
                let is_last = context.depth == 0 && rest.as_slice().is_empty();
                match output.track(action, packet, is_last) {
                    Ok(CtProgress::Done) => {}
                    Ok(CtProgress::Held) => break,
                    Err(reason) => {
                        output.dropped(reason, packet);
                        break;
                    }
                }
            }
        }
    }
    context.queue
}

fn step<'a>(
    action: &'a Action,
    packet: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl ActionOutput,
    context: &mut ExecContext,
) -> NextStep<'a> {
    match action {
        Action::Output(_) | Action::Encap { .. } if packet.refragment.is_some() => {
            return or_refuse(send_fragments(action, packet, endpoints, output, context));
        }
        Action::Output(port) => return or_refuse(output.port(*port, packet)),
        Action::Encap { endpoint, key } => {
            let mut tunnel = TunnelSender { endpoint: *endpoint, key, endpoints, output };
            return or_refuse(tunnel.send(packet));
        }
        Action::Drop(reason) => return NextStep::End(*reason),
        Action::PushVlan(tag) => return or_end(push_vlan(packet, *tag)),
        Action::Set { field, value, mask } => {
            return or_end(rewrite::set_field(packet, *field, *value, *mask));
        }
        Action::Meter { rate_kbps, burst_kb } => {
            if !output.meter(*rate_kbps, *burst_kb, packet) {
                return NextStep::End(DropReason::Meter);
            }
        }
        Action::NamedMeter(meter) => {
            if !output.named_meter(meter, packet) {
                return NextStep::End(DropReason::Meter);
            }
        }
        Action::Clone(_) | Action::Reply { .. } if context.depth >= MAX_NESTING => {
            return NextStep::Refused(DropReason::TranslationDepth);
        }
        Action::Clone(list) => clone(list, packet, endpoints, output, *context),
        Action::Reply { reply, actions } => match reply.build(packet) {
            Ok(mut made) if reply.is_solicitation() => {
                return or_refuse(solicit(actions, &mut made, endpoints, output, *context));
            }
            Ok(mut made) => {
                nested(actions, &mut made, endpoints, output, *context);
                // A router that reports the expiry does not forward the packet.
                if reports_expiry(*reply, actions) {
                    return NextStep::Refused(DropReason::TtlExpired);
                }
            }
            Err(reason) => return NextStep::Refused(reason),
        },
        Action::CheckLength { bytes, larger, otherwise } => {
            let is_larger = longest_frame(packet) > usize::from(*bytes);
            return NextStep::Branch(if is_larger { larger } else { otherwise });
        }
        Action::Serve { service, answered, otherwise } => {
            let Some((destination, mut made)) = answer(service, packet) else {
                return NextStep::Branch(otherwise);
            };
            if context.depth >= MAX_NESTING {
                return NextStep::End(DropReason::TranslationDepth);
            }
            let lists = service.destinations().iter().zip(answered);
            if let Some((_, list)) = lists.into_iter().find(|(of, _)| **of == destination) {
                nested(list, &mut made, endpoints, output, *context);
            }
            return NextStep::Branch(&[]);
        }
        Action::SetQueue(queue) => {
            context.queue = *queue;
            output.queue(*queue);
        }
        Action::PopVlan => {
            pop_vlan(packet);
        }
        Action::SetIcmpMtu(mtu) => rewrite::set_icmp_mtu(packet, *mtu),
        Action::Log(record) => output.log(record, packet),
        Action::Controller => output.controller(packet),
        Action::Ct(action) => return NextStep::Track(action),
    }
    NextStep::Continue
}

/// Splits a reassembled datagram into fragments like those that arrived, and sends them.
#[cold]
fn send_fragments(
    send: &Action,
    packet: &PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl ActionOutput,
    context: &mut ExecContext,
) -> Result<(), DropReason> {
    let each = |fragment: &mut PacketBuf| {
        if let NextStep::Refused(reason) | NextStep::End(reason) =
            step(send, fragment, endpoints, output, context)
        {
            output.dropped(reason, fragment);
        }
    };
    refragment(packet, each).map_err(|_| DropReason::NotApplicable)
}

/// Whether a reply with these actions is an ICMP "time exceeded" (RFC 792, RFC 4443 section 3.3).
fn reports_expiry(reply: Reply, actions: &[Action]) -> bool {
    let time_exceeded = match reply {
        Reply::Icmp4 => 11,
        Reply::Icmp6 => 3,
        _ => return false,
    };
    actions.iter().any(|action| match action {
        Action::Set { field: Field::IcmpType, value, .. } => *value == time_exceeded,
        _ => false,
    })
}

/// Executes a list on a copy of the frame, or on the frame itself if no action of the list changes
/// it.
fn clone(
    list: &[Action],
    packet: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl ActionOutput,
    context: ExecContext,
) {
    if rewrites(list, context.depth) {
        nested(list, &mut packet.clone(), endpoints, output, context);
    } else {
        nested(list, packet, endpoints, output, context);
    }
}

fn nested(
    list: &[Action],
    packet: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl ActionOutput,
    context: ExecContext,
) {
    let inner = ExecContext { depth: context.depth + 1, ..context };
    if run(list, packet, endpoints, output, inner) != context.queue {
        output.queue(context.queue);
    }
}

/// Applies the actions that complete a solicitation, and sends it if [`ActionOutput::solicit`]
/// allows it.
///
/// # Errors
/// The reason why it may not be sent.
fn solicit(
    list: &[Action],
    solicitation: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl ActionOutput,
    mut context: ExecContext,
) -> Result<(), DropReason> {
    // The actions before the first output set the requested address: the next hop.
    let makes = |action: &&Action| {
        matches!(action, Action::Set { .. } | Action::PushVlan(_) | Action::PopVlan)
    };
    let (make, send) = list.split_at(list.iter().take_while(makes).count());
    for action in make {
        if let NextStep::Refused(reason) | NextStep::End(reason) =
            step(action, solicitation, endpoints, output, &mut context)
        {
            output.dropped(reason, solicitation);
            return Ok(());
        }
    }
    if let Some(first) = send.first() {
        output.solicit(solicitation, first)?;
        nested(send, solicitation, endpoints, output, context);
    }
    Ok(())
}

/// True when executing the list may change the frame. Lists beyond the maximum depth are assumed to
/// change it.
fn rewrites(list: &[Action], depth: usize) -> bool {
    list.iter().any(|action| match action {
        Action::PushVlan(_) | Action::PopVlan | Action::Set { .. } | Action::SetIcmpMtu(_) => true,
        Action::CheckLength { larger, otherwise, .. } => {
            depth >= MAX_NESTING || rewrites(larger, depth + 1) || rewrites(otherwise, depth + 1)
        }
        Action::Serve { otherwise, .. } => depth >= MAX_NESTING || rewrites(otherwise, depth + 1),
        Action::Output(_)
        | Action::Encap { .. }
        | Action::Drop(_)
        | Action::Clone(_)
        | Action::Reply { .. }
        | Action::Log(_)
        | Action::Controller
        | Action::Meter { .. }
        | Action::NamedMeter(_)
        | Action::SetQueue(_)
        | Action::Ct(_) => false,
    })
}

const ADDRESSES_LEN: usize = 12;

/// Inserts a tag between the MAC addresses and the EtherType.
///
/// # Errors
/// [`DropReason::Malformed`] for a frame without a whole Ethernet header, [`DropReason::Headroom`]
/// when the buffer has no room. The frame is unchanged then.
pub fn push_vlan(packet: &mut PacketBuf, tag: vlan::Tag) -> Result<(), DropReason> {
    if packet.head().len() < ADDRESSES_LEN + 2 {
        return Err(DropReason::Malformed);
    }
    packet.push_front(vlan::TAG_LEN).map_err(|_| DropReason::Headroom)?;
    let head = packet.head_mut();
    head.copy_within(vlan::TAG_LEN..vlan::TAG_LEN + ADDRESSES_LEN, 0);
    head[ADDRESSES_LEN..ADDRESSES_LEN + vlan::TAG_LEN].copy_from_slice(&tag.to_bytes());
    Ok(())
}

/// Removes and returns the outermost tag; `None` when the frame is untagged.
pub fn pop_vlan(packet: &mut PacketBuf) -> Option<vlan::Tag> {
    const TAGGED_LEN: usize = ADDRESSES_LEN + vlan::TAG_LEN + 2;
    let head = packet.head_mut();
    let &[.., a, b, c, d, _, _] = head.first_chunk::<TAGGED_LEN>()?;
    let tpid = EtherType(u16::from_be_bytes([a, b]));
    if !tpid.is_vlan() {
        return None;
    }
    head.copy_within(0..ADDRESSES_LEN, vlan::TAG_LEN);
    packet.pull_front(vlan::TAG_LEN);
    Some(vlan::Tag::from_tci(tpid, u16::from_be_bytes([c, d])))
}
