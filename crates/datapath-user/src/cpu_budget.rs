//! The processor time that the upcalls of each port may take.
//!
//! A guest chooses how many new flows it sends, and thus how many upcalls the host handles. So each
//! port has a token bucket of processor time. The threads measure what the upcalls of a port cost,
//! and take that from its bucket afterwards. A port with a negative balance is in debt: its upcalls
//! wait in their queue until the inflow has paid it.
//!
//! Programs in front of this datapath are asked to refuse misses of a port in debt, because reading
//! punted packets takes processor time too.
//!
//! Only ports of guests are limited. Behind the port of a tunnel there are many hosts, and so there
//! are behind a device that leads to a physical network. One of them could use up the budget of the
//! others. Such devices are measured nevertheless.

use super::fast_path::FastPath;
use ahash::HashMap;
use datapath::cpu_meter::PortWork;
use datapath::stats::SlowPathStats;
use flow::{DropReason, PortNo};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The depth of the bucket, as the processor time of a burst of upcalls.
const BURST: Duration = Duration::from_millis(100);
/// The longest time that a port waits for the end of its debt.
pub(super) const MAX_DEBT: Duration = Duration::from_secs(2);
/// The shortest pause of misses in the programs: each takes system calls.
const LEAST_PAUSE: Duration = Duration::from_millis(2);
/// The shortest time after which a pause is ordered again, if the programs still punt misses.
const RENEWAL: Duration = Duration::from_millis(10);
/// So long after a debt, refused packets still count as refused for it. At its limit, a port is in
/// debt most of the time, but not always.
const AFTER_DEBT: Duration = Duration::from_secs(1);

/// The work of a thread that ports are charged for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WorkKind {
    /// The switch has handled upcalls.
    Upcalls,
    /// A worker has executed the answers of upcalls, or has raised upcalls.
    Forwarding,
    /// A worker has forwarded punted packets; `misses` of them had no megaflow. The time of the
    /// others stands for that of `batches` batches, of which one was measured.
    Punted {
        /// How many.
        batches: u32,
    },
}

/// The budgets of the ports that have a device. Any thread charges, each for its own work.
#[derive(Debug)]
pub(super) struct CpuBudgets {
    percent: AtomicU32,
    accounts: Mutex<HashMap<PortNo, Account>>,
    programs: Option<Arc<dyn FastPath>>,
}

/// The budget of a port and what was done for it.
#[derive(Clone, Copy, Debug)]
struct Account {
    is_limited: bool,
    upcalls: u64,
    upcall_cpu: Duration,
    punted: u64,
    punted_cpu: Duration,
    /// The processor time that is left, in nanoseconds; negative for a debt.
    balance_ns: i64,
    /// The time up to which the balance includes the inflow.
    filled: Instant,
    /// When the port was last in debt.
    in_debt: Option<Instant>,
    pause: Option<Pause>,
}

/// What the programs were asked to do about a port in debt.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// When they were asked.
    ordered: Instant,
    /// Until when they should refuse misses.
    until: Instant,
}

impl Account {
    fn new(is_limited: bool, now: Instant) -> Self {
        Self {
            is_limited,
            upcalls: 0,
            upcall_cpu: Duration::ZERO,
            punted: 0,
            punted_cpu: Duration::ZERO,
            balance_ns: nanoseconds(BURST),
            filled: now,
            in_debt: None,
            pause: None,
        }
    }

    fn add(&mut self, work: &PortWork, kind: WorkKind) -> Duration {
        let PortWork { packets, misses, cpu, .. } = *work;
        let for_upcalls = match kind {
            WorkKind::Punted { .. } => cpu * misses.min(packets) / packets.max(1),
            WorkKind::Upcalls | WorkKind::Forwarding => cpu,
        };
        match kind {
            WorkKind::Upcalls => self.upcalls += u64::from(packets),
            WorkKind::Punted { batches } => {
                self.punted += u64::from(packets);
                self.punted_cpu += cpu.saturating_sub(for_upcalls) * batches;
            }
            WorkKind::Forwarding => {}
        }
        self.upcall_cpu += for_upcalls;
        for_upcalls
    }

    /// Adds the inflow. A debt that a larger share would have paid in [`MAX_DEBT`] is reduced to
    /// what this one pays in that time.
    fn refill(&mut self, percent: u32, now: Instant) {
        let elapsed = nanoseconds(now.saturating_duration_since(self.filled));
        let inflow = elapsed.saturating_mul(percent.into()) / 100;
        let balance = self.balance_ns.saturating_add(inflow);
        self.balance_ns = balance.clamp(least_balance(percent), nanoseconds(BURST));
        self.filled = self.filled.max(now);
    }

    fn spend(&mut self, cpu: Duration, percent: u32, now: Instant) {
        let balance = self.balance_ns.saturating_sub(nanoseconds(cpu));
        self.balance_ns = balance.max(least_balance(percent));
        if self.balance_ns < 0 {
            self.in_debt = Some(now);
        }
    }

    /// Begins a pause of the port's misses if it is in debt and not paused. If the programs punt
    /// misses nevertheless, a program may have undone the pause, so it is ordered again.
    fn begin_pause(&mut self, percent: u32, punts_misses: bool, now: Instant) -> Option<Duration> {
        let pause = self.debt(percent)?.max(LEAST_PAUSE);
        let is_due = self.pause.is_none_or(|Pause { ordered, until }| {
            until <= now || punts_misses && now.saturating_duration_since(ordered) >= RENEWAL
        });
        if !is_due {
            return None;
        }
        self.pause = Some(Pause { ordered: now, until: now + pause });
        Some(pause)
    }

    /// How long it takes to pay the debt; `None` without one.
    fn debt(&self, percent: u32) -> Option<Duration> {
        let debt = u64::try_from(self.balance_ns.checked_neg()?).ok().filter(|debt| *debt > 0)?;
        Some(Duration::from_nanos(debt.saturating_mul(100) / u64::from(percent.max(1))))
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// The balance that takes [`MAX_DEBT`] to pay.
fn least_balance(percent: u32) -> i64 {
    -(nanoseconds(MAX_DEBT).saturating_mul(percent.into()) / 100)
}

impl CpuBudgets {
    /// Budgets of `percent` of a processor. `programs` refuse misses of ports in debt.
    pub(super) fn new(percent: u32, programs: Option<Arc<dyn FastPath>>) -> Self {
        Self { percent: AtomicU32::new(percent), accounts: Mutex::default(), programs }
    }

    /// Changes the budget of each port.
    pub(super) fn set_percent(&self, percent: u32) {
        self.percent.store(percent, Ordering::Relaxed);
    }

    fn percent(&self) -> u32 {
        self.percent.load(Ordering::Relaxed)
    }

    /// Opens the account of a new port.
    pub(super) fn add(&self, port: PortNo, is_limited: bool) {
        self.lock().insert(port, Account::new(is_limited, Instant::now()));
    }

    /// Changes whether a port is limited.
    pub(super) fn set_limited(&self, port: PortNo, is_limited: bool) {
        if let Some(account) = self.lock().get_mut(&port) {
            account.is_limited = is_limited;
        }
    }

    /// Charges ports for work until `now`. Tunnels, and ports that were removed, have no account.
    pub(super) fn charge(&self, work: &[PortWork], kind: WorkKind, now: Instant) {
        let percent = self.percent();
        let mut pauses = Vec::new();
        let mut accounts = self.lock();
        for work in work {
            let Some(account) = accounts.get_mut(&work.port) else { continue };
            let cpu = account.add(work, kind);
            if !account.is_limited {
                continue;
            }
            account.refill(percent, now);
            account.spend(cpu, percent, now);
            let punts_misses = matches!(kind, WorkKind::Punted { .. }) && work.misses > 0;
            let pause = account.begin_pause(percent, punts_misses, now);
            pauses.extend(pause.map(|pause| (work.port, pause)));
        }
        drop(accounts);
        if let Some(programs) = &self.programs {
            pauses.into_iter().for_each(|(port, pause)| programs.pause_misses(port, pause));
        }
    }

    /// How long the upcalls of a port have to wait; `None` if it is not in debt.
    pub(super) fn debt(&self, port: PortNo, now: Instant) -> Option<Duration> {
        let percent = self.percent();
        let mut accounts = self.lock();
        let account = accounts.get_mut(&port).filter(|account| account.is_limited)?;
        account.refill(percent, now);
        account.debt(percent)
    }

    /// Why a port's packets find no room in its upcall queue.
    pub(super) fn refusal(&self, port: PortNo, now: Instant) -> DropReason {
        let accounts = self.lock();
        let last = accounts.get(&port).and_then(|account| account.in_debt);
        match last.is_some_and(|last| now.saturating_duration_since(last) < AFTER_DEBT) {
            true => DropReason::UpcallBudget,
            false => DropReason::UpcallQueueFull,
        }
    }

    /// What was done for a port so far.
    pub(super) fn stats(&self, port: PortNo) -> SlowPathStats {
        let limit = self.percent();
        let accounts = self.lock();
        let ns = |time: Duration| time.as_nanos() as u64;
        let done = accounts.get(&port).map(|account| SlowPathStats {
            upcalls: account.upcalls,
            upcall_cpu_ns: ns(account.upcall_cpu),
            upcall_cpu_limit_percent: if account.is_limited { limit } else { 0 },
            punted: account.punted,
            punted_cpu_ns: ns(account.punted_cpu),
        });
        done.unwrap_or_default()
    }

    /// Forgets a port that was removed.
    pub(super) fn remove(&self, port: PortNo) {
        self.lock().remove(&port);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PortNo, Account>> {
        // No code panics halfway through a change, so a poisoned state is consistent.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fast_path::{PathMtu, ResolvedNextHop, RouteChange};
    use super::*;
    use netdev::{Ifindex, Link};

    const PORT: PortNo = PortNo(1);
    const MS: Duration = Duration::from_millis(1);

    fn work(port: PortNo, cpu: Duration) -> PortWork {
        PortWork { port, packets: 4, misses: 1, cpu }
    }

    /// Budgets with one limited port, whose account was opened at the returned time or before.
    fn budgets(percent: u32) -> (CpuBudgets, Instant) {
        let budgets = CpuBudgets::new(percent, None);
        budgets.add(PORT, true);
        (budgets, Instant::now())
    }

    #[test]
    fn port_is_in_debt_until_its_share_has_paid_what_it_has_used() {
        let (budgets, start) = budgets(25);
        budgets.charge(&[work(PORT, BURST)], WorkKind::Upcalls, start);
        assert_eq!(budgets.debt(PORT, start), None);
        assert_eq!(budgets.refusal(PORT, start), DropReason::UpcallQueueFull);
        budgets.charge(&[work(PORT, 5 * MS)], WorkKind::Forwarding, start);
        assert_eq!(budgets.debt(PORT, start), Some(20 * MS));
        assert_eq!(budgets.debt(PORT, start + 15 * MS), Some(5 * MS));
        assert_eq!(budgets.debt(PORT, start + 20 * MS), None);
        assert_eq!(budgets.refusal(PORT, start + 20 * MS), DropReason::UpcallBudget);
        assert_eq!(budgets.refusal(PORT, start + AFTER_DEBT), DropReason::UpcallQueueFull);
        assert_eq!(budgets.refusal(PortNo(2), start), DropReason::UpcallQueueFull);
        let found = budgets.stats(PORT);
        assert_eq!((found.upcalls, found.upcall_cpu_ns), (4, 105_000_000));
    }

    #[test]
    fn use_over_a_long_time_is_at_most_the_share() {
        let (budgets, start) = budgets(10);
        let mut used = Duration::ZERO;
        for at in 0..10_000 {
            let now = start + at * MS;
            if budgets.debt(PORT, now).is_none() {
                budgets.charge(&[work(PORT, 3 * MS)], WorkKind::Upcalls, now);
                used += 3 * MS;
            }
        }
        let share = Duration::from_secs(1);
        assert!((share..=share + BURST + 3 * MS).contains(&used), "{used:?}");
    }

    #[test]
    fn debt_has_a_limit_and_ports_that_lead_to_a_network_have_no_debt() {
        let (budgets, start) = budgets(25);
        let hour = Duration::from_secs(3600);
        budgets.charge(&[work(PORT, hour)], WorkKind::Upcalls, start);
        assert_eq!(budgets.debt(PORT, start), Some(MAX_DEBT));
        let network = PortNo(2);
        budgets.add(network, false);
        budgets.charge(&[work(network, hour)], WorkKind::Upcalls, start);
        assert_eq!(budgets.debt(network, start), None);
        assert_eq!(budgets.refusal(network, start), DropReason::UpcallQueueFull);
        let found = budgets.stats(network);
        assert_eq!((found.upcalls, found.upcall_cpu_limit_percent), (4, 0));
        budgets.set_limited(network, true);
        budgets.charge(&[work(network, hour)], WorkKind::Upcalls, start);
        assert_eq!(budgets.debt(network, start), Some(MAX_DEBT));
    }

    #[test]
    fn tunnels_and_removed_ports_have_no_account() {
        let (budgets, start) = budgets(25);
        let tunnel = PortNo(0x1_0000);
        budgets.remove(PORT);
        for port in [tunnel, PORT] {
            budgets.charge(&[work(port, 10 * BURST)], WorkKind::Upcalls, start);
            assert_eq!((budgets.debt(port, start), budgets.stats(port).upcalls), (None, 0));
        }
        budgets.add(PORT, true);
        assert_eq!(budgets.debt(PORT, start), None, "a new port owes nothing of an earlier one");
    }

    #[test]
    fn only_misses_among_punted_packets_are_charged() {
        let (budgets, start) = budgets(25);
        budgets.charge(&[work(PORT, 400 * MS)], WorkKind::Punted { batches: 3 }, start);
        assert_eq!(budgets.debt(PORT, start), None);
        let found = budgets.stats(PORT);
        assert_eq!((found.punted, found.punted_cpu_ns), (4, 900_000_000));
        assert_eq!((found.upcalls, found.upcall_cpu_ns), (0, 100_000_000));
        budgets.remove(PORT);
        assert_eq!(budgets.stats(PORT).punted, 0);
    }

    #[test]
    fn changed_share_applies_to_what_is_owed() {
        let (budgets, start) = budgets(25);
        budgets.charge(&[work(PORT, BURST + 5 * MS)], WorkKind::Upcalls, start);
        budgets.set_percent(100);
        assert_eq!(budgets.debt(PORT, start), Some(5 * MS));
    }

    /// Programs that note the pauses.
    #[derive(Debug, Default)]
    struct Programs(Mutex<Vec<(PortNo, Duration)>>);

    impl FastPath for Programs {
        fn pause_misses(&self, port: PortNo, pause: Duration) {
            self.0.lock().unwrap().push((port, pause));
        }

        fn punt_device(&self, _: Option<Ifindex>) {}
        fn uplink(&self, _: Option<&Link>) {}
        fn port(&self, _: PortNo, _: Option<&Link>) {}
        fn resolved(&self, _: &[ResolvedNextHop]) {}
        fn routed(&self, _: &[RouteChange]) {}
        fn path_mtus(&self, _: &[PathMtu]) {}
    }

    #[test]
    fn pause_is_ordered_again_when_programs_punt_misses_although_it_lasts() {
        let programs = Arc::new(Programs::default());
        let budgets = CpuBudgets::new(25, Some(Arc::<Programs>::clone(&programs)));
        budgets.add(PORT, true);
        let start = Instant::now();
        let pauses = || std::mem::take(&mut *programs.0.lock().unwrap());
        let punted = WorkKind::Punted { batches: 1 };
        budgets.charge(&[work(PORT, BURST + 25 * MS)], WorkKind::Upcalls, start);
        assert_eq!(pauses(), [(PORT, 100 * MS)]);
        // Packets that were punted before the pause.
        budgets.charge(&[work(PORT, Duration::ZERO)], punted, start + 5 * MS);
        // Upcalls that were raised before.
        budgets.charge(&[work(PORT, Duration::ZERO)], WorkKind::Upcalls, start + 20 * MS);
        // Packets that have a megaflow.
        let hits = PortWork { misses: 0, ..work(PORT, MS) };
        budgets.charge(&[hits], punted, start + 20 * MS);
        assert!(pauses().is_empty());
        for (at, left) in [(20, Some(80)), (25, None), (30, Some(70))] {
            budgets.charge(&[work(PORT, Duration::ZERO)], punted, start + at * MS);
            let expected: Vec<_> = left.map(|left| (PORT, left * MS)).into_iter().collect();
            assert_eq!(pauses(), expected, "{at}");
        }
    }

    #[test]
    fn debt_has_its_limit_when_the_share_becomes_smaller() {
        let (budgets, start) = budgets(6400);
        budgets.charge(&[work(PORT, Duration::from_secs(3600))], WorkKind::Upcalls, start);
        budgets.set_percent(1);
        assert_eq!(budgets.debt(PORT, start), Some(MAX_DEBT));
        assert_eq!(budgets.debt(PORT, start + MAX_DEBT), None);
    }
}
