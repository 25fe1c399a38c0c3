//! [`Link`]: when to connect to which remote, and when to give a connection up.

use super::config::Times;
use super::event::{DisconnectReason, Unsuitable};
use crate::remote::Remote;
use std::time::{Duration, Instant};

/// An action for the owner of the socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Close the connection, if any, and drop what has not been sent.
    Close,
    /// Connect; then call `handle_connected` or `handle_disconnected`.
    Connect(Remote),
}

/// The action that is due.
#[derive(PartialEq, Debug)]
pub(super) enum DueAction {
    Nothing,
    /// Send an echo request.
    Probe,
    GiveUp(DisconnectReason),
}

/// The state of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Waits until then.
    Backoff(Instant),
    /// Gives up then.
    Connecting(Instant),
    Open {
        last_rx: Instant,
        is_probed: bool,
        /// When the first table update was complete.
        synced: Option<Instant>,
        /// The server prepares a dump.
        is_syncing: bool,
        /// Since when the server has been without its cluster.
        cut_off: Option<Instant>,
    },
}

/// The reconnection of a session.
#[derive(Debug)]
pub(super) struct Link {
    times: Times,
    remotes: Vec<Remote>,
    /// The remote in use, or the next.
    current: usize,
    state: State,
    /// Consecutive connections without success.
    failures: u32,
    random: u64,
}

impl Link {
    pub fn new(times: Times, remotes: Vec<Remote>, seed: u64, now: Instant) -> Self {
        let mut link = Self {
            times,
            remotes: Vec::new(),
            current: 0,
            state: State::Backoff(now),
            failures: 0,
            random: seed,
        };
        link.set_remotes(remotes);
        link
    }

    /// Replaces the remotes. True if the one in use is still among them.
    pub fn set_remotes(&mut self, mut remotes: Vec<Remote>) -> bool {
        for last in (1..remotes.len()).rev() {
            let other = self.random_below(last as u64 + 1) as usize;
            remotes.swap(last, other);
        }
        let current = self.remotes.get(self.current);
        let kept = current.and_then(|current| remotes.iter().position(|other| other == current));
        self.remotes = remotes;
        self.current = kept.unwrap_or(0);
        self.failures = 0;
        kept.is_some()
    }

    pub fn remote(&self) -> Option<&Remote> {
        self.remotes.get(self.current)
    }

    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    pub const fn is_idle(&self) -> bool {
        matches!(self.state, State::Backoff(_))
    }

    /// Begins to connect if it is time.
    pub fn poll_connect(&mut self, now: Instant) -> Option<Remote> {
        let remote = self.remote()?.clone();
        match self.state {
            State::Backoff(until) if until <= now => {
                self.state = State::Connecting(now + self.times.connect_timeout);
                Some(remote)
            }
            _ => None,
        }
    }

    /// Records that the connection is established. False if none was expected.
    pub fn connected(&mut self, now: Instant) -> bool {
        if !matches!(self.state, State::Connecting(_)) {
            return false;
        }
        self.state = State::Open {
            last_rx: now,
            is_probed: false,
            synced: None,
            is_syncing: false,
            cut_off: None,
        };
        true
    }

    pub fn received(&mut self, now: Instant) {
        if let State::Open { last_rx, is_probed, .. } = &mut self.state {
            *last_rx = now;
            *is_probed = false;
        }
    }

    pub fn set_syncing(&mut self, value: bool) {
        if let State::Open { is_syncing, .. } = &mut self.state {
            *is_syncing = value;
        }
    }

    /// Records whether the server has lost its cluster, according to the message just received.
    /// During the election of a leader this applies to all servers of a cluster, so a client that
    /// leaves finds no better one.
    pub fn set_cut_off(&mut self, value: bool) {
        if let State::Open { cut_off, last_rx, .. } = &mut self.state {
            *cut_off = value.then(|| cut_off.unwrap_or(*last_rx));
        }
    }

    /// Records that the first table update is complete.
    pub fn synced(&mut self, now: Instant) {
        if let State::Open { synced, .. } = &mut self.state {
            synced.get_or_insert(now);
        }
    }

    /// Handles the end of the connection: chooses when and where to connect next.
    ///
    /// Each remote is tried once without delay, except for a jitter that keeps the clients of a
    /// dead server from arriving at the next one at the same moment. After a round without success
    /// the delay doubles. A connection was a success if it lasted, or if the client ended it.
    pub fn ended(&mut self, now: Instant, is_requested: bool) {
        let Times { min_backoff, max_backoff, .. } = self.times;
        let is_success = matches!(self.state, State::Open { synced: Some(since), .. }
            if now.saturating_duration_since(since) >= min_backoff);
        self.failures =
            if is_success || is_requested { 0 } else { self.failures.saturating_add(1) };
        let count = self.remotes.len().max(1);
        self.current = (self.current + 1) % count;
        let rounds = self.failures.checked_div(count as u32).unwrap_or(0);
        let delay = match rounds.checked_sub(1) {
            None => self.random_up_to(min_backoff / 10),
            Some(doublings) => {
                let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
                let longest = min_backoff.saturating_mul(factor).min(max_backoff);
                longest / 2 + self.random_up_to(longest / 2)
            }
        };
        self.state = State::Backoff(now + delay);
    }

    /// The action that is due now.
    pub fn due(&mut self, now: Instant) -> DueAction {
        let Some(deadline) = self.deadline().filter(|deadline| *deadline <= now) else {
            return DueAction::Nothing;
        };
        match &mut self.state {
            State::Backoff(_) => DueAction::Nothing,
            State::Connecting(_) => DueAction::GiveUp(DisconnectReason::ConnectTimeout),
            State::Open { cut_off: Some(since), .. }
                if *since + self.times.election_patience <= now =>
            {
                DueAction::GiveUp(DisconnectReason::Unsuitable(Unsuitable::Disconnected))
            }
            State::Open { is_probed: true, .. } => DueAction::GiveUp(DisconnectReason::Inactive),
            State::Open { is_probed, last_rx, .. } => {
                *is_probed = true;
                // The reply gets the same interval, from the time when the probe is sent.
                *last_rx = (*last_rx).max(deadline);
                DueAction::Probe
            }
        }
    }

    /// The time of the next action.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            _ if self.remotes.is_empty() => None,
            State::Backoff(until) | State::Connecting(until) => Some(until),
            State::Open { last_rx, is_syncing, cut_off, .. } => {
                let probe = self.times.probe_interval.map(|interval| {
                    let longer = self.times.sync_interval.max(interval);
                    last_rx + if is_syncing { longer } else { interval }
                });
                let leave = cut_off.map(|since| since + self.times.election_patience);
                probe.into_iter().chain(leave).min()
            }
        }
    }

    fn random_up_to(&mut self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
        Duration::from_micros(self.random_below(micros))
    }

    /// A random number from 0 to `limit` - 1 (splitmix64).
    fn random_below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^= value >> 31;
        // The high half of the product is uniform enough for jitter.
        ((u128::from(value) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests;
