//! Window tracking: checks the sequence and acknowledgement numbers of segments.
//!
//! The rules are those of Guido van Rooij, "Real Stateful TCP Packet Filtering in IP Filter", with
//! the changes that nf_conntrack made to them. For each sender, a [`Side`] contains the highest
//! sequence number that it sent (`end`), and the highest that its receiver allowed (`max_end`). A
//! segment is valid when
//!
//! 1. it begins at or before `max_end` of its sender,
//! 2. it ends at most the receiver's largest window before `end` of its sender,
//! 3. it acknowledges at most `end` of its receiver,
//! 4. its acknowledgement lags behind `end` of its receiver by at most the sender's largest window
//!    or [`MAX_ACK_DELAY`], whichever is larger.

use wire::TcpFlags;

use super::TcpState;
use crate::Direction;
use crate::headers::{Segment, is_after};

/// The lower limit for the number of bytes that an acknowledgement may lag behind: the largest
/// unscaled window.
const MAX_ACK_DELAY: u32 = 66_000;

/// The numbers and options that one end has sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    /// The highest sequence number sent, exclusive.
    end: u32,
    /// The highest sequence number that the receiver allowed, exclusive.
    max_end: u32,
    /// The largest window advertised in bytes. 0 if the end has not sent anything yet.
    max_window: u32,
    /// The highest acknowledgement sent; valid if [`Side::HAS_ACK`] is set.
    max_ack: u32,
    scale: u8,
    flags: u8,
}

/// The numbers of a segment, corrected for stacks that send wrong ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentNumbers {
    pub seq: u32,
    pub ack: u32,
    pub end: u32,
}

/// The position of a segment's numbers in relation to the windows of both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WindowPosition {
    Inside,
    /// Below the window, or slightly above it.
    Delayed,
    Outside,
}

#[inline]
pub(super) const fn is_before(a: u32, b: u32) -> bool {
    is_after(b, a)
}

impl Side {
    /// Accept any numbers: the connection was picked up, and its window scale is unknown, or some
    /// of its packets were not tracked.
    pub const LIBERAL: u8 = 1;
    /// This end has sent FIN first.
    pub const CLOSE_INITIATOR: u8 = 2;
    /// The receiver has not acknowledged `end`.
    pub const UNACKNOWLEDGED: u8 = 4;
    const HAS_SCALE: u8 = 8;
    const SACK_PERMITTED: u8 = 16;
    const HAS_ACK: u8 = 32;

    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub const fn set(&mut self, flag: u8) {
        self.flags |= flag;
    }

    const fn clear(&mut self, flag: u8) {
        self.flags &= !flag;
    }

    /// Both sides after the SYN of a new connection.
    pub fn first_syn(segment: &Segment) -> [Self; 2] {
        let mut side = Self {
            end: segment.end,
            max_end: segment.end,
            max_window: u32::from(segment.window).max(1),
            ..Self::default()
        };
        side.read_options(segment);
        [side, Self::default()]
    }

    /// Both sides of a connection whose beginning was not seen.
    pub fn picked_up(segment: &Segment) -> [Self; 2] {
        let window = u32::from(segment.window).max(1);
        let flags = Self::LIBERAL | Self::SACK_PERMITTED;
        let side = Self {
            end: segment.end,
            max_end: segment.end.wrapping_add(window),
            max_window: window,
            flags,
            ..Self::default()
        };
        [side, Self { flags, ..Self::default() }]
    }

    /// The state of the end that sent a previously ignored SYN.
    pub fn of_ignored_syn(end: u32, window: u16, scale: u8, flags: u8) -> Self {
        let max_window = u32::from(window).max(1);
        Self { end, max_end: end, max_window, max_ack: 0, scale, flags }
    }

    /// Window scale and flags of a SYN.
    pub fn options_of(segment: &Segment) -> (u8, u8) {
        let mut side = Self::default();
        side.read_options(segment);
        (side.scale, side.flags)
    }

    /// Forgets what this end has sent.
    pub fn reset(&mut self) {
        *self = Self { flags: self.flags & Self::LIBERAL, ..Self::default() };
    }

    /// Forgets the window and the acknowledgements, as if this end had sent nothing. Otherwise a
    /// RST would be compared with an outdated acknowledgement.
    pub const fn forget_window(&mut self) {
        self.max_window = 0;
        self.clear(Self::HAS_ACK);
    }

    /// Window scale and flags.
    pub const fn save(self) -> [u8; 2] {
        [self.scale, self.flags]
    }

    /// Restores the result of [`Side::save`]; the window is unknown.
    pub fn restore([scale, flags]: [u8; 2]) -> Self {
        // RFC 7323 section 2.3: a larger scale counts as 14.
        let mut side = Self { scale: scale.min(14), flags, ..Self::default() };
        side.forget_window();
        side
    }

    /// The highest acknowledgement that this end has sent.
    pub fn max_ack(&self) -> Option<u32> {
        self.has(Self::HAS_ACK).then_some(self.max_ack)
    }

    /// True when this end's sequence numbers are beyond those of `older`, an end of an older
    /// connection with the same ports.
    pub const fn has_advanced(&self, older: &Self) -> bool {
        (self.end.wrapping_sub(older.end) as i32) > 0
    }

    /// Reads the options of a SYN. A segment without any options changes nothing.
    fn read_options(&mut self, segment: &Segment) {
        let Some(options) = segment.options else { return };
        self.scale = options.scale.unwrap_or(0);
        self.flags &= Self::LIBERAL;
        if options.scale.is_some() {
            self.set(Self::HAS_SCALE);
        }
        if options.sack_permitted {
            self.set(Self::SACK_PERMITTED);
        }
    }

    /// Begins with a SYN or SYN-ACK. Windows are scaled only if both ends sent the option (RFC 7323
    /// section 2.2).
    fn begin(&mut self, receiver: &mut Self, segment: &Segment, direction: Direction) {
        self.end = segment.end;
        self.max_end = segment.end;
        self.max_window = u32::from(segment.window).max(1);
        self.read_options(segment);
        let both = self.has(Self::HAS_SCALE) && receiver.has(Self::HAS_SCALE);
        if direction == Direction::Reply && !both {
            self.scale = 0;
            receiver.scale = 0;
        }
    }

    /// Begins in the middle of the connection.
    fn begin_late(&mut self, receiver: &mut Self, segment: &Segment, sack: u32) {
        self.end = segment.end;
        self.max_window = (u32::from(segment.window) << self.scale).max(1);
        self.max_end = segment.end.wrapping_add(self.max_window);
        if receiver.max_window == 0 {
            receiver.end = sack;
            receiver.max_end = sack;
        } else if sack == receiver.end.wrapping_add(1) {
            // Probably the reply to a keepalive.
            receiver.end = sack;
        }
    }

    fn max_ack_delay(&self) -> u32 {
        self.max_window.max(MAX_ACK_DELAY)
    }
}

/// Checks a segment against the window and updates both sides. The second value is `None` when the
/// segment was accepted as the beginning of a simultaneous open, without further checks.
pub(super) fn check(
    sides: &mut [Side; 2],
    direction: Direction,
    segment: &Segment,
    state: TcpState,
) -> (WindowPosition, Option<SegmentNumbers>) {
    let [original, reply] = sides;
    let (sender, receiver) = match direction {
        Direction::Original => (original, reply),
        Direction::Reply => (reply, original),
    };
    let sacked = receiver.has(Side::SACK_PERMITTED);
    let mut sack = if sacked { segment.sack } else { segment.ack };
    let mut seen = SegmentNumbers { seq: segment.seq, ack: segment.ack, end: segment.end };
    let (is_syn, has_ack) = (segment.has(TcpFlags::SYN), segment.has(TcpFlags::ACK));
    if sender.max_window == 0 {
        if is_syn {
            sender.begin(receiver, segment, direction);
            if !has_ack {
                return (WindowPosition::Inside, None);
            }
        } else {
            sender.begin_late(receiver, segment, sack);
        }
    } else if is_syn
        && is_after(seen.end, sender.end)
        && matches!(state, TcpState::SynSent | TcpState::SynRecv)
    {
        // The sender starts again with other sequence numbers.
        sender.begin(receiver, segment, direction);
        if direction == Direction::Reply && !has_ack {
            return (WindowPosition::Inside, None);
        }
    }
    let is_reset = segment.has(TcpFlags::RST);
    if !has_ack || (is_reset && seen.ack == 0) {
        // Some stacks set ACK in a RST, but not the acknowledgement number.
        seen.ack = receiver.end;
        sack = receiver.end;
    }
    if is_reset && seen.seq == 0 && state == TcpState::SynSent {
        // A RST in reply to a SYN.
        seen.seq = sender.end;
        seen.end = sender.end;
    }
    match classify_segment(sender, receiver, seen, sack) {
        WindowPosition::Inside => {
            update(sender, receiver, segment, seen, sack);
            (WindowPosition::Inside, Some(seen))
        }
        position => (position, Some(seen)),
    }
}

/// Compares the numbers with the window.
fn classify_segment(
    sender: &mut Side,
    receiver: &Side,
    seen: SegmentNumbers,
    sack: u32,
) -> WindowPosition {
    let ack_is_new_enough =
        is_after(sack, receiver.end.wrapping_sub(sender.max_ack_delay()).wrapping_sub(1));
    let ends_in_window =
        is_after(seen.end, sender.end.wrapping_sub(receiver.max_window).wrapping_sub(1));
    let ack_was_sent = is_before(sack, receiver.end.wrapping_add(1));
    if !is_before(seen.seq, sender.max_end.wrapping_add(1)) {
        // Some stacks send somewhat more than the window allows. If the receiver accepts that, it
        // will acknowledge data that the tracker has not seen, so `end` must be raised.
        let excess = seen.end.wrapping_sub(sender.max_end).wrapping_add(1);
        let is_tolerated = receiver.max_window != 0
            && ends_in_window
            && ack_is_new_enough
            && ack_was_sent
            && excess <= receiver.max_window;
        if !is_tolerated {
            return WindowPosition::Outside;
        }
        sender.end = seen.end;
        sender.set(Side::UNACKNOWLEDGED);
        return WindowPosition::Delayed;
    }
    if !ack_was_sent {
        return WindowPosition::Outside;
    }
    let in_window = receiver.max_window == 0 || ends_in_window;
    if in_window && ack_is_new_enough { WindowPosition::Inside } else { WindowPosition::Delayed }
}

fn update(
    sender: &mut Side,
    receiver: &mut Side,
    segment: &Segment,
    seen: SegmentNumbers,
    sack: u32,
) {
    // The window of a SYN is never scaled (RFC 7323 section 2.2).
    let scale = if segment.has(TcpFlags::SYN) { 0 } else { sender.scale };
    let window = u32::from(segment.window) << scale;
    let sack_distance = sack.wrapping_sub(seen.ack);
    sender.max_window = sender.max_window.max(window.wrapping_add(sack_distance));
    if is_after(seen.end, sender.end) {
        sender.end = seen.end;
        sender.set(Side::UNACKNOWLEDGED);
    }
    if segment.has(TcpFlags::ACK)
        && (!sender.has(Side::HAS_ACK) || is_after(seen.ack, sender.max_ack))
    {
        sender.max_ack = seen.ack;
        sender.set(Side::HAS_ACK);
    }
    if receiver.max_window != 0 && is_after(seen.end, sender.max_end) {
        let excess = seen.end.wrapping_sub(sender.max_end);
        receiver.max_window = receiver.max_window.wrapping_add(excess);
    }
    let allowed = sack.wrapping_add(window);
    if is_after(allowed, receiver.max_end.wrapping_sub(1)) {
        receiver.max_end = allowed.wrapping_add(u32::from(window == 0));
    }
    if seen.ack == receiver.end {
        receiver.clear(Side::UNACKNOWLEDGED);
    }
}
