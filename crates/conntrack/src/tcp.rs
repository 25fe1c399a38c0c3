//! The TCP state machine, as nf_conntrack runs it.
//!
//! Segments may be lost after they have passed the tracker, so its states follow the segments that
//! both ends have *sent*. Three kinds of segments do not change the state:
//!
//! - **Invalid** segments cannot belong to the connection.
//! - **Ignored** segments may belong to a newer connection with the same ports. They pass, and the
//!   tracker remembers them, because the response shows whether it is out of sync: a SYN-ACK that
//!   acknowledges an ignored SYN starts the connection anew, and a RST ends it.
//! - **Delayed** segments are below the window: retransmissions of acknowledged data. They pass.

mod window;

use wire::TcpFlags;

use crate::headers::{Segment, TcpEvent};
use crate::{Direction, Invalid, Timeout, Timeouts};

use window::{Side, WindowPosition};

/// The state of a TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum TcpState {
    /// No segment was seen yet.
    None,
    /// A SYN was seen in the original direction.
    SynSent,
    /// A SYN-ACK was seen in the reply direction.
    SynRecv,
    /// An ACK was seen in the original direction: the handshake is complete.
    Established,
    /// A FIN was seen.
    FinWait,
    /// An ACK was seen after the FIN.
    CloseWait,
    /// FINs of both ends were seen.
    LastAck,
    /// The last ACK was seen.
    TimeWait,
    /// A RST was seen.
    Close,
    /// SYNs were seen in both directions: simultaneous open.
    SynSent2,
}

impl TcpState {
    /// The name in output, the same as in nf_conntrack.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::SynSent => "SYN_SENT",
            Self::SynRecv => "SYN_RECV",
            Self::Established => "ESTABLISHED",
            Self::FinWait => "FIN_WAIT",
            Self::CloseWait => "CLOSE_WAIT",
            Self::LastAck => "LAST_ACK",
            Self::TimeWait => "TIME_WAIT",
            Self::Close => "CLOSE",
            Self::SynSent2 => "SYN_SENT2",
        }
    }

    /// Every state, in the order of their numbers.
    const ALL: [Self; 10] = [
        Self::None,
        Self::SynSent,
        Self::SynRecv,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Close,
        Self::SynSent2,
    ];

    pub(crate) const fn timeout(self) -> Timeout {
        match self {
            Self::None | Self::SynSent => Timeout::TcpSynSent,
            Self::SynRecv => Timeout::TcpSynRecv,
            Self::Established => Timeout::TcpEstablished,
            Self::FinWait => Timeout::TcpFinWait,
            Self::CloseWait => Timeout::TcpCloseWait,
            Self::LastAck => Timeout::TcpLastAck,
            Self::TimeWait => Timeout::TcpTimeWait,
            Self::Close => Timeout::TcpClose,
            Self::SynSent2 => Timeout::TcpSynSent2,
        }
    }

    /// True if one end has closed: the ports may already be in use by the next connection.
    const fn is_closing(self) -> bool {
        matches!(
            self,
            Self::FinWait | Self::CloseWait | Self::LastAck | Self::TimeWait | Self::Close
        )
    }
}

/// The effect of a segment on the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transition {
    To(TcpState),
    Ignore,
    Invalid,
}

/// The state that follows `state` after `event` in this direction.
fn transition(direction: Direction, event: TcpEvent, state: TcpState) -> Transition {
    use Direction::{Original, Reply};
    use TcpState::{
        Close, CloseWait, Established, FinWait, LastAck, None, SynRecv, SynSent, SynSent2, TimeWait,
    };
    match (event, direction, state) {
        (TcpEvent::None, _, _) | (TcpEvent::Rst, _, None) => Transition::Invalid,
        (TcpEvent::Rst, _, _) => Transition::To(Close),

        (TcpEvent::Syn, Original, None | SynSent | TimeWait | Close) => Transition::To(SynSent),
        (TcpEvent::Syn, Original, SynSent2) => Transition::To(SynSent2),
        (TcpEvent::Syn, Original, _) => Transition::Ignore,
        (TcpEvent::Syn, Reply, SynSent | SynSent2) => Transition::To(SynSent2),
        (TcpEvent::Syn, Reply, TimeWait) => Transition::To(SynSent),
        (TcpEvent::Syn, Reply, _) => Transition::Invalid,

        (TcpEvent::SynAck, Original, SynRecv | SynSent2) => Transition::To(SynRecv),
        (TcpEvent::SynAck, Original, _) | (TcpEvent::SynAck, Reply, None) => Transition::Invalid,
        (TcpEvent::SynAck, Reply, SynSent | SynSent2) => Transition::To(SynRecv),
        (TcpEvent::SynAck, Reply, _) => Transition::Ignore,

        (TcpEvent::Fin, _, None | SynSent | SynSent2) => Transition::Invalid,
        (TcpEvent::Fin, _, SynRecv | Established) => Transition::To(FinWait),
        (TcpEvent::Fin, _, FinWait | CloseWait | LastAck) => Transition::To(LastAck),

        (TcpEvent::Ack, Original, SynSent | SynSent2) | (TcpEvent::Ack, Reply, None) => {
            Transition::Invalid
        }
        (TcpEvent::Ack, Reply, SynSent | SynSent2) => Transition::Ignore,
        (TcpEvent::Ack, Reply, SynRecv) => Transition::To(SynRecv),
        (TcpEvent::Ack, Original, None | SynRecv) | (TcpEvent::Ack, _, Established) => {
            Transition::To(Established)
        }
        (TcpEvent::Ack, _, FinWait | CloseWait) => Transition::To(CloseWait),
        (TcpEvent::Ack, _, LastAck) => Transition::To(TimeWait),

        (TcpEvent::Fin | TcpEvent::Ack, _, TimeWait | Close) => Transition::To(state),
    }
}

/// Data of the previous segment, accepted or ignored.
#[derive(Clone, Copy, Debug)]
struct LastSegment {
    seq: u32,
    ack: u32,
    end: u32,
    window: u16,
    direction: Direction,
    event: TcpEvent,
    /// The options of an ignored SYN, which the tracker needs when it starts the connection anew.
    scale: u8,
    side_flags: u8,
    /// Bits [`SIMULTANEOUS_OPEN`] and [`MAY_BE_CHALLENGED`].
    marks: u8,
}

impl LastSegment {
    const NONE: Self = Self {
        seq: 0,
        ack: 0,
        end: 0,
        window: 0,
        direction: Direction::Original,
        event: TcpEvent::None,
        scale: 0,
        side_flags: 0,
        marks: 0,
    };
}

const SIMULTANEOUS_OPEN: u8 = 1;
/// A SYN was ignored in LAST_ACK. Its receiver may answer with a challenge ACK (RFC 5961).
const MAY_BE_CHALLENGED: u8 = 2;

/// A tracked TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tcp {
    sides: [Side; 2],
    last: LastSegment,
    state: TcpState,
    retransmits: u8,
}

/// Facts about the connection that are not in [`Tcp`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub seen_reply: bool,
    /// The handshake is complete.
    pub assured: bool,
    /// Accept segments outside the window.
    pub liberal: bool,
    pub timeouts: &'a Timeouts,
}

/// The result of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The segment belongs to the connection. `timeout` is `None` when the segment does not prolong
    /// the connection's life. `assure` is true when the handshake is complete.
    Accept { timeout: Option<Timeout>, assure: bool },
    /// The segment passes, and changes nothing.
    Ignore,
    /// The segment ends a connection that has seen no reply. Remove the connection; the segment
    /// still belongs to it.
    Abort,
    /// Remove the connection, and track the segment again: it begins a new one.
    Reopen,
    /// The segment is invalid. With a timeout, the connection must not live longer than that.
    Invalid(Invalid, Option<Timeout>),
}

impl Tcp {
    /// The connection that `segment` begins: with a SYN, or in the middle of the connection if
    /// `pick_up` is set.
    pub fn new(segment: &Segment, pick_up: bool) -> Result<Self, Invalid> {
        let syn = match transition(Direction::Original, segment.event(), TcpState::None) {
            Transition::To(TcpState::SynSent) => true,
            Transition::To(_) if pick_up => false,
            _ => return Err(Invalid::NotFirst),
        };
        let sides = if syn { Side::first_syn(segment) } else { Side::picked_up(segment) };
        Ok(Self { sides, last: LastSegment::NONE, state: TcpState::None, retransmits: 0 })
    }

    /// The window scales and other facts of both ends that later segments do not contain.
    pub fn save(&self) -> u64 {
        let [[a, b], [c, d]] = self.sides.map(|side| side.save());
        u64::from_le_bytes([a, b, c, d, 0, 0, 0, 0])
    }

    /// The connection in this state, with the result of [`Tcp::save`] and unknown windows. `None`
    /// if there is no such state.
    pub fn restore(state: u8, saved: u64) -> Option<Self> {
        let [a, b, c, d, ..] = saved.to_le_bytes();
        let sides = [[a, b], [c, d]].map(Side::restore);
        let state = *TcpState::ALL.get(usize::from(state))?;
        Some(Self { sides, last: LastSegment::NONE, state, retransmits: 0 })
    }

    pub const fn state(&self) -> TcpState {
        self.state
    }

    /// True for a segment that changes neither the state nor the timeout of an assured connection.
    pub fn is_steady(&self, segment: &Segment) -> bool {
        self.state == TcpState::Established && segment.event() == TcpEvent::Ack
    }

    /// Forgets the windows of both ends. The next segment of each end starts its window anew, as in
    /// a connection whose beginning was not seen.
    ///
    /// From now on any numbers are accepted. Segments that were not tracked may have overtaken the
    /// next ones, so a window that begins with the next ones may be far behind.
    pub fn forget_window(&mut self) {
        for side in &mut self.sides {
            side.forget_window();
            side.set(Side::LIBERAL);
        }
    }

    /// True when NAT may assign the ports of this closed connection to `newer`, because segments of
    /// the old connection are outside the window of `newer`.
    pub fn is_replaceable_by(&self, newer: &Self) -> bool {
        let is_over =
            matches!(self.state, TcpState::TimeWait | TcpState::Close | TcpState::SynSent2);
        is_over && newer.state == TcpState::SynSent && newer.sides[0].has_advanced(&self.sides[0])
    }

    /// Runs the state machine.
    pub fn track(
        &mut self,
        direction: Direction,
        segment: &Segment,
        context: Context<'_>,
    ) -> Outcome {
        let event = segment.event();
        let old = self.state;
        let (old, new) = match transition(direction, event, old) {
            Transition::Invalid => return Outcome::Invalid(Invalid::OutOfState, None),
            Transition::Ignore => match self.ignore(direction, event, segment) {
                true => (TcpState::SynSent, TcpState::SynRecv),
                false => return Outcome::Ignore,
            },
            Transition::To(TcpState::SynSent) if old >= TcpState::TimeWait => {
                if self.is_reopened(direction) {
                    return Outcome::Reopen;
                }
                match self.ignore(direction, event, segment) {
                    true => (TcpState::SynSent, TcpState::SynRecv),
                    false => return Outcome::Ignore,
                }
            }
            Transition::To(new) => (old, new),
        };
        match self.exceptions(direction, event, segment, old, new, context) {
            Exception::None(new) => self.check_window(direction, event, segment, old, new, context),
            Exception::SkipWindow(new) => self.accept(direction, event, segment, old, new, context),
            Exception::Outcome(outcome) => outcome,
        }
    }

    /// True when a SYN may begin a new connection after the end of this one.
    fn is_reopened(&self, direction: Direction) -> bool {
        let closed = self.sides.iter().any(|side| side.has(Side::CLOSE_INITIATOR));
        closed || (self.last.direction == direction && self.last.event == TcpEvent::Rst)
    }

    /// Remembers an ignored segment. Returns true for a SYN-ACK that acknowledges a previously
    /// ignored SYN: both ends are in sync, and now the tracker is too.
    fn ignore(&mut self, direction: Direction, event: TcpEvent, segment: &Segment) -> bool {
        let last = &mut self.last;
        if event == TcpEvent::SynAck
            && last.event == TcpEvent::Syn
            && last.direction != direction
            && segment.ack == last.end
        {
            last.marks &= !MAY_BE_CHALLENGED;
            let syn = Side::of_ignored_syn(last.end, last.window, last.scale, last.side_flags);
            self.sides[last.direction.index()] = syn;
            self.sides[direction.index()].reset();
            return true;
        }
        last.event = event;
        last.direction = direction;
        last.seq = segment.seq;
        last.end = segment.end;
        last.window = segment.window;
        if event == TcpEvent::Syn && direction == Direction::Original {
            (last.scale, last.side_flags) = Side::options_of(segment);
            last.marks = if self.state == TcpState::LastAck { MAY_BE_CHALLENGED } else { 0 };
        }
        // A challenge ACK that answers a SYN.
        if self.state == TcpState::SynSent
            && event == TcpEvent::Ack
            && direction == Direction::Reply
        {
            last.ack = segment.ack;
        }
        false
    }

    fn exceptions(
        &mut self,
        direction: Direction,
        event: TcpEvent,
        segment: &Segment,
        old: TcpState,
        new: TcpState,
        context: Context<'_>,
    ) -> Exception {
        let last = &mut self.last;
        match new {
            TcpState::TimeWait
                if old == TcpState::LastAck
                    && event == TcpEvent::Ack
                    && last.direction != direction
                    && last.event == TcpEvent::Syn
                    && last.marks & MAY_BE_CHALLENGED != 0 =>
            {
                last.marks &= !MAY_BE_CHALLENGED;
                Exception::Outcome(Outcome::Ignore)
            }
            TcpState::SynSent2 => {
                last.marks |= SIMULTANEOUS_OPEN;
                Exception::None(new)
            }
            TcpState::SynRecv
                if direction == Direction::Reply
                    && event == TcpEvent::Ack
                    && last.marks & SIMULTANEOUS_OPEN != 0 =>
            {
                Exception::None(TcpState::Established)
            }
            TcpState::Close if event == TcpEvent::Rst => {
                self.check_reset(direction, segment, old, context)
            }
            _ => Exception::None(new),
        }
    }

    /// Checks a RST. Some must be accepted without checking the window. Others must match exactly,
    /// because an attacker can guess a number inside the window.
    fn check_reset(
        &self,
        direction: Direction,
        segment: &Segment,
        old: TcpState,
        context: Context<'_>,
    ) -> Exception {
        let close = Exception::None(TcpState::Close);
        let last = &self.last;
        if old.is_closing() {
            return Exception::SkipWindow(TcpState::Close);
        }
        let mut new = TcpState::Close;
        let expected = self.sides[direction.reversed().index()].max_ack();
        if let Some(expected) = expected.filter(|_| last.event != TcpEvent::Syn) {
            let is_open = context.assured && old == TcpState::Established;
            // The reply to an earlier SYN, from a stack that sends sequence number 0 in a RST.
            if segment.seq == 0 && !is_open {
                return close;
            }
            if window::is_before(segment.seq, expected) {
                return Exception::Outcome(Outcome::Invalid(Invalid::OutOfWindow, None));
            }
            if !is_open || segment.seq == expected {
                return close;
            }
            // The RST directly follows the sender's last segment.
            if last.event == TcpEvent::Ack && last.direction == direction && segment.seq == last.end
            {
                return close;
            }
            // The receiver may answer with a challenge ACK; the connection continues.
            new = old;
        }
        let answers_ignored = match last.event {
            TcpEvent::Syn => context.seen_reply && last.direction != direction,
            TcpEvent::Ack => !context.assured,
            _ => false,
        };
        if answers_ignored && segment.ack == last.end {
            return Exception::SkipWindow(new);
        }
        if old == TcpState::SynSent
            && last.event == TcpEvent::Ack
            && last.direction == Direction::Reply
            && segment.seq == last.ack
        {
            return Exception::SkipWindow(new);
        }
        Exception::None(new)
    }

    fn check_window(
        &mut self,
        direction: Direction,
        event: TcpEvent,
        segment: &Segment,
        old: TcpState,
        new: TcpState,
        context: Context<'_>,
    ) -> Outcome {
        let (position, seen) = window::check(&mut self.sides, direction, segment, self.state);
        let liberal = context.liberal || self.sides[direction.index()].has(Side::LIBERAL);
        match position {
            WindowPosition::Inside => {
                if let Some(seen) = seen.filter(|_| event == TcpEvent::Ack) {
                    self.count_retransmits(direction, segment, seen);
                }
            }
            _ if liberal => {}
            WindowPosition::Delayed => return Outcome::Ignore,
            WindowPosition::Outside => {
                let timeout = self.shorten(direction, event, context);
                return Outcome::Invalid(Invalid::OutOfWindow, timeout);
            }
        }
        self.accept(direction, event, segment, old, new, context)
    }

    fn count_retransmits(
        &mut self,
        direction: Direction,
        segment: &Segment,
        seen: window::SegmentNumbers,
    ) {
        let last = &mut self.last;
        let same = last.direction == direction
            && last.seq == seen.seq
            && last.ack == seen.ack
            && last.end == seen.end
            && last.window == segment.window;
        if same {
            self.retransmits = self.retransmits.saturating_add(1);
            return;
        }
        last.direction = direction;
        last.seq = seen.seq;
        last.ack = seen.ack;
        last.end = seen.end;
        last.window = segment.window;
        self.retransmits = 0;
    }

    /// After a FIN or RST outside the window in both directions, the tracker is out of sync with a
    /// connection that has ended. Shortens its timeout, so that it does not stay for days.
    fn shorten(
        &mut self,
        direction: Direction,
        event: TcpEvent,
        context: Context<'_>,
    ) -> Option<Timeout> {
        let ends = |event| matches!(event, TcpEvent::Fin | TcpEvent::Rst);
        if !context.assured || !ends(event) {
            return None;
        }
        if self.last.direction != direction && ends(self.last.event) {
            return Some(Timeout::TcpUnacknowledged);
        }
        self.last.event = event;
        self.last.direction = direction;
        None
    }

    fn accept(
        &mut self,
        direction: Direction,
        event: TcpEvent,
        segment: &Segment,
        old: TcpState,
        new: TcpState,
        context: Context<'_>,
    ) -> Outcome {
        self.last.event = event;
        self.last.direction = direction;
        self.state = new;
        if old != new && new == TcpState::FinWait {
            self.sides[direction.index()].set(Side::CLOSE_INITIATOR);
        }
        let mut timeout = Some(self.timeout(event, new, context.timeouts));
        let mut assure = false;
        if !context.seen_reply {
            if segment.has(TcpFlags::RST) {
                return Outcome::Abort;
            }
            // The timeout is not extended. Otherwise a client that retries could keep its entry,
            // and its NAT, forever.
            if event == TcpEvent::Syn && old == TcpState::SynSent {
                timeout = None;
            }
            if new == TcpState::Established {
                let shorter = |t| context.timeouts.shorter(t, Timeout::TcpUnacknowledged);
                timeout = timeout.map(shorter);
            }
        } else if !context.assured
            && new == TcpState::Established
            && matches!(old, TcpState::SynRecv | TcpState::Established)
        {
            assure = true;
        }
        Outcome::Accept { timeout, assure }
    }

    fn timeout(&self, event: TcpEvent, state: TcpState, timeouts: &Timeouts) -> Timeout {
        /// The number of equal segments after which the connection counts as dead.
        const MAX_RETRANSMITS: u8 = 3;
        let (own, retransmit) = (state.timeout(), Timeout::TcpRetransmit);
        let shortens = |other| timeouts.seconds(own) > timeouts.seconds(other);
        if self.retransmits >= MAX_RETRANSMITS && shortens(retransmit) {
            retransmit
        } else if event == TcpEvent::Rst {
            Timeout::TcpClose
        } else if self.sides.iter().any(|side| side.has(Side::UNACKNOWLEDGED))
            && shortens(Timeout::TcpUnacknowledged)
        {
            Timeout::TcpUnacknowledged
        } else if self.last.window == 0 && shortens(retransmit) {
            retransmit
        } else {
            own
        }
    }
}

enum Exception {
    /// Check the window, then change to this state.
    None(TcpState),
    /// Change to this state.
    SkipWindow(TcpState),
    Outcome(Outcome),
}
