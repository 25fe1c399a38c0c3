//! Measures what a hostile guest leaves to other guests, and which resources of the switch it uses.
//!
//! On the first host, guest A attacks. Guest B sends UDP packets and new connections at steady
//! rates, pings, and sends TCP as fast as possible. B is measured alone and during the attack, in
//! turn. Each figure is the median of its measurements, and B must keep its part of what it has
//! alone.
//!
//! All guests and both switches share the processors of this machine. What A's own sender takes is
//! no fault of the switch, so A may have a bounded share of a processor, as a host would grant it.
//! The report names the shares of A's sender and of the daemon.

use std::time::{Duration, Instant};

use super::attack::Attack;
use super::peak::PeakUsage;
use super::report::{CriterionResult, TrustReport};
use super::test_bed::{Footprint, TestBed};
use super::victim::{VictimRates, measure};
use crate::Result;
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::frames::socket;

/// How often B is measured during the attack. It is measured alone before and after each of them.
const ROUNDS: usize = 3;
/// The part of its steady packets that B must keep. One of 1,000 may be lost when a processor is
/// late.
const KEPT_STEADY: f64 = 0.999;
/// The part of its new connections that B must keep.
const KEPT_NEW: f64 = 0.9;
/// The part of its TCP throughput that B must keep.
const KEPT_TCP: f64 = 0.8;
/// B's longest median round-trip time, as a multiple of the time that it has alone.
const SLOWER_PINGS: f64 = 2.0;
/// The part of its TCP throughput that B must regain after the attack. The limit is low because
/// the throughput of B varies even without an attack: docs/results/2026-11-26-tuple-space.md.
const RECOVERED: f64 = 0.5;
/// The largest number of megaflows of a switch: its default limit.
const MEGAFLOWS: u64 = 200_000;
/// The number of caches that may have a copy of a megaflow: those of two workers, and the maps of
/// the eBPF programs.
const COPIES: u64 = 3;
/// The largest number of masks of a port, plus the exact-match mask.
const MASKS_PER_PORT: u64 = 257;
/// The largest number of connections that a guest's port may open, and the largest number of all
/// ports.
const CONNECTIONS: [u64; 2] = [500_000, 750_000];
/// The memory of a connection, which is not counted as growth.
const CONNECTION_BYTES: u64 = 256;
/// The smallest number of opened connections that counts as a flood.
const FLOODED: u64 = 100_000;
/// The growth of memory that is allowed after the warm-up and the first round.
const FLAT: f64 = 1.05;

/// The processor time, in seconds, that A's sender and the daemon of its host take.
#[derive(Clone, Copy, Debug, Default)]
struct CpuUse {
    sender: f64,
    daemon: f64,
    elapsed: f64,
}

impl CpuUse {
    /// What has been used since `start`.
    fn now(bed: &TestBed<'_>, blast: &Blast, start: Instant) -> Result<Self> {
        Ok(Self {
            sender: blast.cpu_time().as_secs_f64(),
            daemon: bed.cpu_time(0)?.as_secs_f64(),
            elapsed: start.elapsed().as_secs_f64(),
        })
    }

    fn add(&mut self, before: Self, after: Self) {
        self.sender += after.sender - before.sender;
        self.daemon += after.daemon - before.daemon;
        self.elapsed += after.elapsed - before.elapsed;
    }

    fn text(self) -> String {
        let percent = |seconds: f64| 100.0 * seconds / self.elapsed.max(f64::MIN_POSITIVE);
        let (sender, daemon) = (percent(self.sender), percent(self.daemon));
        format!("A's sender {sender:.0} %, the daemon {daemon:.0} %")
    }
}

/// Runs `attack`, in which A sends at `pace`. The switch is attacked for `warm_up` before B is
/// measured; each measurement takes `seconds`.
///
/// # Errors
/// The test bed fails. Losses of B are not an error but part of the report.
pub fn run(
    attack: Attack,
    bed: &mut TestBed<'_>,
    pace: Pace,
    [warm_up, seconds]: [Duration; 2],
) -> Result<TrustReport> {
    let lab = bed.lab();
    let (bad, target) = (lab.guest(0, 0), lab.guest(1, 0));
    let mut peak = PeakUsage::default();
    let mut alone = vec![measure(bed, attack, seconds, &mut PeakUsage::default())?];
    let mut during = Vec::new();
    let idle = bed.footprint(0)?;

    let (template, change) = attack.packets(bad, target);
    let start = Instant::now();
    let blast = Blast::start(socket(bad)?, template, change, pace, bad.cpu())?;
    peak.watch(bed, attack, warm_up)?;
    let (mut used, mut packets) = (CpuUse::default(), 0);
    for round in 0..ROUNDS {
        blast.set_paused(false);
        let before = (CpuUse::now(bed, &blast, start)?, blast.next_number());
        during.push(measure(bed, attack, seconds, &mut peak)?);
        used.add(before.0, CpuUse::now(bed, &blast, start)?);
        packets += blast.next_number() - before.1;
        blast.set_paused(true);
        alone.push(measure(bed, attack, seconds, &mut peak)?);
        if round == 0 {
            // Until now the caches have grown for both guests.
            peak.end_warm_up();
        }
    }
    let refused = blast.refused();
    let sent = blast.finish();
    let full = bed.footprint(0)?;
    let counters = bed.counters(0)?;
    let far = bed.counters(1)?;
    let switch = bed.switch_counters(0).ok();

    let mut report = TrustReport::default();
    report.note("datapath", counters["datapath"].as_str().unwrap_or("unknown"));
    for (what, all) in [("alone", &alone), ("during the attack", &during)] {
        for rates in all {
            report.note(format!("B {what}"), rates.text());
        }
    }
    let rate = packets as f64 / used.elapsed.max(f64::MIN_POSITIVE);
    report.note("attack", format!("{rate:.0} packets/s while B was measured"));
    report
        .note("attack in all", format!("{sent} packets accepted by the device, {refused} refused"));
    report.note("of one processor", used.text());
    judge_victim(&mut report, &alone, &during);
    judge_bounds(&mut report, &peak, idle, full);
    if attack == Attack::SynFlood {
        judge_connections(&mut report, peak.connections);
    }
    for (what, counters, path) in [
        ("drops of A's port", &counters, "/ports/0/drops"),
        ("drops of B's port", &counters, "/ports/1/drops"),
        ("drops of the other host", &far, "/uplink/drops"),
    ] {
        report.note(what, counters.pointer(path).map_or_else(String::new, ToString::to_string));
    }
    if let Some(switch) = switch {
        report.note("switch", switch.to_string());
    }
    Ok(report)
}

/// Judges what B keeps of what it has alone.
fn judge_victim(report: &mut TrustReport, alone: &[VictimRates], during: &[VictimRates]) {
    let [own, kept] = [alone, during].map(VictimRates::median);
    for (what, own, kept, least) in [
        ("steady UDP kept", own.steady, kept.steady, KEPT_STEADY),
        ("new connections kept", own.new, kept.new, KEPT_NEW),
        ("TCP kept", own.tcp_gbps, kept.tcp_gbps, KEPT_TCP),
    ] {
        let part = kept / own.max(f64::MIN_POSITIVE);
        let text = format!("{part:.3} (at least {least})");
        report.judge(CriterionResult::of(part >= least), what, text);
    }
    let slower = kept.rtt_us / own.rtt_us;
    let text = format!("{slower:.2} of that of B alone (at most {SLOWER_PINGS})");
    report.judge(CriterionResult::of(slower <= SLOWER_PINGS), "round-trip time", text);
    let (before, after) = (&alone[..1], &alone[1..]);
    let [before, after] = [before, after].map(|rates| VictimRates::median(rates).tcp_gbps);
    let recovered = after / before.max(f64::MIN_POSITIVE);
    let text = format!("{recovered:.2} (at least {RECOVERED})");
    report.judge(CriterionResult::of(recovered >= RECOVERED), "TCP after the attack", text);
}

fn judge_bounds(report: &mut TrustReport, peak: &PeakUsage, idle: Footprint, full: Footprint) {
    let ports = 6;
    let verdict = CriterionResult::of(peak.megaflows <= MEGAFLOWS * COPIES);
    let text = format!("{} in all caches (at most {})", peak.megaflows, MEGAFLOWS * COPIES);
    report.judge(verdict, "megaflows", text);
    let most = MASKS_PER_PORT * ports;
    report.judge(
        CriterionResult::of(peak.masks <= most),
        "masks",
        format!("{} (at most {most})", peak.masks),
    );
    // The connection table may still fill up after the warm-up.
    let opened_since = peak.connections[0].saturating_sub(peak.warm_connections);
    let table_bytes = opened_since * CONNECTION_BYTES;
    let flat_bytes = peak.late_bytes.saturating_sub(table_bytes);
    let growth = flat_bytes as f64 / peak.warm_bytes.max(1) as f64;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let text = format!(
        "{:.1} MiB idle, {:.1} MiB when warm, {:.1} MiB in the end, {:.1} of it for connections \
         opened since: {growth:.3} (at most {FLAT})",
        mib(idle.resident_bytes),
        mib(peak.warm_bytes),
        mib(peak.late_bytes),
        mib(table_bytes)
    );
    report.judge(CriterionResult::of(growth <= FLAT), "memory", text);
    let same = (idle.descriptors, idle.threads) == (full.descriptors, full.threads);
    let text = format!(
        "{} descriptors and {} threads, then {} and {}",
        idle.descriptors, idle.threads, full.descriptors, full.threads
    );
    report.judge(CriterionResult::of(same), "descriptors and threads", text);
}

/// Judges whether the flood has opened many connections, and no more than the limit.
fn judge_connections(report: &mut TrustReport, peak: [u64; 2]) {
    for ((what, peak), most) in
        ["A's port", "the other host's tunnels"].into_iter().zip(peak).zip(CONNECTIONS)
    {
        let verdict = CriterionResult::of((FLOODED..=most).contains(&peak));
        let text = format!("{peak} at a time (at least {FLOODED}, at most {most})");
        report.judge(verdict, format!("connections of {what}"), text);
    }
}
