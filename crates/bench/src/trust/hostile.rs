//! Measures how much throughput a hostile guest leaves to other guests, and which resources of the
//! switch it uses.
//!
//! On the first host, guest A attacks. Guest B sends UDP packets and new connections at steady
//! rates, and TCP as fast as possible. B is measured without the attack, during the attack, and
//! again after it.
//!
//! All guests and both switches share the processors of this machine, and A's sender uses some
//! processor time itself. That is no fault of the switch. So received steady packets are judged
//! relative to those that B could send. TCP is also compared with its rate while A sends packets of
//! *one* connection, which cost the switch as little as possible. For the port scan these are
//! packets that the switch drops at once.

use std::time::{Duration, Instant};

use super::attack::Attack;
use super::report::{CriterionResult, TrustReport};
use super::test_bed::{Footprint, TestBed, number};
use crate::lab::Guest;
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::connections::connections;
use crate::traffic::flow::{Flow, Traffic};
use crate::traffic::frames::{Frame, socket};
use crate::traffic::sink::Sink;
use crate::{Error, Result};

/// B's steady packet rate, on one connection.
const STEADY_PPS: f64 = 20_000.0;
/// B's rate of new connections.
const NEW_PPS: f64 = 1_000.0;
/// The share of its throughput that B must keep.
const KEPT_THROUGHPUT: f64 = 0.8;
/// The share of its TCP throughput that B must regain after the attack. The limit is low because
/// the throughput of B varies even without an attack: docs/results/2026-11-26-tuple-space.md.
const RECOVERED: f64 = 0.5;
/// The share of its new connections that must still succeed.
const KEPT_SETUPS: f64 = 0.9;
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
/// The growth of memory that is allowed after the warm-up. Megaflows are created and deleted all
/// the time, and the allocator keeps its pages.
const FLAT: f64 = 1.10;
/// The shortest warm-up of an attack: twice the idle timeout of megaflows, so that the first ones
/// have expired.
const WARM_UP: Duration = Duration::from_secs(20);
/// How long B may take to establish a TCP connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How often the switch's counters are read.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How long TCP may start up (slow start) before the measurement begins.
const TCP_START: Duration = Duration::from_millis(300);
/// How long a UDP stream through stateful ACLs runs before the measurement: until it counts as
/// established.
const STREAM_START: Duration = Duration::from_secs(3);
/// The rate of the replies to the steady packets.
const REPLY_PPS: f64 = 20.0;

/// The rates that B achieves.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct VictimRates {
    steady: ReceivedRate,
    new: ReceivedRate,
    tcp_gbps: f64,
    attack_pps: f64,
}

/// Packet rates per second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct ReceivedRate {
    /// Packets that the sender offered to its device.
    offered: f64,
    /// Packets that arrived.
    received: f64,
}

impl ReceivedRate {
    fn part(self) -> f64 {
        self.received / self.offered.max(f64::MIN_POSITIVE)
    }
}

/// The highest resource use of the switch.
#[derive(Clone, Copy, Debug, Default)]
struct PeakUsage {
    megaflows: u64,
    masks: u64,
    /// The connections opened by A's port, and by tunnels of the other host. Only with a SYN flood.
    connections: [u64; 2],
    /// Resident bytes after the warm-up.
    warm_bytes: u64,
    /// The connections opened by A's port until the end of the warm-up.
    warm_connections: u64,
    late_bytes: u64,
}

/// Runs `attack`, in which A sends at `pace`; each measurement takes `seconds`.
///
/// # Errors
/// The test bed fails. Losses of B are not an error but part of the report.
pub fn run(
    attack: Attack,
    bed: &mut TestBed<'_>,
    pace: Pace,
    seconds: Duration,
) -> Result<TrustReport> {
    let lab = bed.lab();
    let (bad, target) = (lab.guest(0, 0), lab.guest(1, 0));
    let mut report = TrustReport::default();
    let mut peak = PeakUsage::default();
    let share = |bed: &mut TestBed<'_>, blast: Option<&Blast>, peak: &mut PeakUsage| {
        share(bed, attack, blast, seconds, peak)
    };
    let before = share(bed, None, &mut PeakUsage::default())?;
    let idle = bed.footprint(0)?;

    let (template, change) = attack.packets(bad, target);
    let blast = Blast::start(socket(bad)?, template, change, pace, bad.cpu())?;
    // The memory of the switch may grow until its caches are full.
    watch(bed, attack, &mut peak, seconds.max(WARM_UP))?;
    let warm = bed.footprint(0)?.resident_bytes;
    peak.warm_bytes = std::mem::take(&mut peak.late_bytes).max(warm);
    peak.warm_connections = peak.connections[0];
    let during = share(bed, Some(&blast), &mut peak)?;
    let refused = blast.refused();
    let sent = blast.finish();
    let full = bed.footprint(0)?;
    peak.late_bytes = peak.late_bytes.max(full.resident_bytes);
    let counters = bed.counters(0)?;
    let far = bed.counters(1)?;
    let switch = bed.switch_counters(0).ok();

    let after = share(bed, None, &mut PeakUsage::default())?;
    let plain = {
        let template = attack.harmless(bad, target);
        let pace = Pace::PerSecond(during.attack_pps);
        let same = Blast::start(socket(bad)?, template, |_, _| (), pace, bad.cpu())?;
        share(bed, Some(&same), &mut PeakUsage::default())?
    };

    report.note("datapath", counters["datapath"].as_str().unwrap_or("unknown"));
    report.note("B alone", before.text());
    report.note("B during the attack", during.text());
    report.note("B alone again", after.text());
    report.note("B during as many packets of one connection", plain.text());
    report.note("attack", format!("{sent} packets accepted by the device, {refused} refused"));
    judge_victim_rates(&mut report, [before, after], during, plain);
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

fn judge_victim_rates(
    report: &mut TrustReport,
    alone: [VictimRates; 2],
    during: VictimRates,
    plain: VictimRates,
) {
    for (what, get, least) in [
        ("steady UDP", (|share| share.steady) as fn(&VictimRates) -> ReceivedRate, KEPT_THROUGHPUT),
        ("new connections", |share| share.new, KEPT_SETUPS),
    ] {
        let alone = f64::midpoint(get(&alone[0]).part(), get(&alone[1]).part());
        let kept = get(&during).part() / alone.max(f64::MIN_POSITIVE);
        let verdict = CriterionResult::of(kept >= least);
        report.judge(verdict, format!("{what} kept"), format!("{kept:.3} (at least {least:.2})"));
    }
    let kept = during.tcp_gbps / plain.tcp_gbps.max(f64::MIN_POSITIVE);
    let [before, after] = alone.map(|rates| rates.tcp_gbps);
    let recovered = after / before.max(f64::MIN_POSITIVE);
    let text = format!("{recovered:.2} (at least {RECOVERED:.2})");
    report.judge(CriterionResult::of(recovered >= RECOVERED), "TCP after the attack", text);
    let alone = f64::midpoint(before, after);
    let of_alone = during.tcp_gbps / alone.max(f64::MIN_POSITIVE);
    let text = format!(
        "{of_alone:.2} of B alone, {kept:.2} of B during one connection of A (at least \
         {KEPT_THROUGHPUT:.2} of either)"
    );
    let verdict = CriterionResult::of(kept.max(of_alone) >= KEPT_THROUGHPUT);
    report.judge(verdict, "TCP kept", text);
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

/// Measures B: UDP and new connections in one half of the time, TCP in the other half.
fn share(
    bed: &mut TestBed<'_>,
    attack: Attack,
    blast: Option<&Blast>,
    seconds: Duration,
    peak: &mut PeakUsage,
) -> Result<VictimRates> {
    let begin = (Instant::now(), blast.map_or(0, Blast::sent));
    let (steady, new) = udp(bed, attack, seconds / 2, peak)?;
    let tcp_gbps = tcp(bed, attack, seconds / 2, peak)?;
    let attack_packets = blast.map_or(0, Blast::sent) - begin.1;
    let attack_pps = attack_packets as f64 / begin.0.elapsed().as_secs_f64();
    Ok(VictimRates { steady, new, tcp_gbps, attack_pps })
}

/// The rates at which packets of the steady stream and of new connections arrive.
fn udp(
    bed: &mut TestBed<'_>,
    attack: Attack,
    duration: Duration,
    peak: &mut PeakUsage,
) -> Result<(ReceivedRate, ReceivedRate)> {
    let [from, to] = victims(bed);
    let replies = Sink::start(from, from.ip4().into())?;
    let sinks = [Sink::start(to, to.ip4().into())?, Sink::start(to, to.ip4().into())?];
    let mut template = Frame::udp_template((from.mac(), from.ip4()), (to.mac(), to.ip4()));
    Frame::of(&mut template).set_ports(replies.port(), sinks[0].port());
    let steady =
        Blast::start(socket(from)?, template, |_, _| (), Pace::PerSecond(STEADY_PPS), from.cpu())?;
    // A UDP connection becomes established only if there are replies.
    let mut reply = Frame::udp_template((to.mac(), to.ip4()), (from.mac(), from.ip4()));
    Frame::of(&mut reply).set_ports(sinks[0].port(), replies.port());
    let pace = Pace::PerSecond(REPLY_PPS);
    let _replies = Blast::start(socket(to)?, reply, |_, _| (), pace, to.cpu())?;
    // A new seed for each measurement, so that its packets match no megaflow of an earlier one.
    let seed = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(sinks[1].port()) << 20;
    let (template, change) = connections(from, to, sinks[1].port(), seed);
    let new = Blast::start(socket(from)?, template, change, Pace::PerSecond(NEW_PPS), from.cpu())?;
    bed.pass(if attack == Attack::SynFlood { STREAM_START } else { TCP_START })?;
    let pairs = [(&steady, &sinks[0]), (&new, &sinks[1])];
    let counts = || pairs.map(|(blast, sink)| [blast.sent() + blast.refused(), sink.received()]);
    let (begin, before) = (Instant::now(), counts());
    watch(bed, attack, peak, duration)?;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), counts());
    let rate = |which: usize, what: usize| {
        after[which][what].saturating_sub(before[which][what]) as f64 / seconds
    };
    let arrived = |which| ReceivedRate { offered: rate(which, 0), received: rate(which, 1) };
    Ok((arrived(0), arrived(1)))
}

fn tcp(
    bed: &mut TestBed<'_>,
    attack: Attack,
    duration: Duration,
    peak: &mut PeakUsage,
) -> Result<f64> {
    let [from, to] = victims(bed);
    let flow = Flow::stream(from, to, to.ip4().into())?;
    let stop = bed.stop_flag();
    // A handshake that fails is repeated: only the throughput of B is judged.
    let mut refusal = String::new();
    let streams = stop.wait_for("a TCP connection of B", CONNECT_LIMIT, || {
        match Traffic::start(&[flow], stop) {
            Ok(streams) => Ok(Some(streams)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                refusal = error.to_string();
                Ok(None)
            }
        }
    });
    let streams = streams.map_err(|error| match error {
        Error::Deadline { what, limit, .. } => Error::Deadline { what, limit, detail: refusal },
        other => other,
    })?;
    bed.pass(TCP_START)?;
    let bytes = || streams.received().iter().sum::<u64>();
    let begin = (Instant::now(), bytes());
    watch(bed, attack, peak, duration)?;
    let gbps = (bytes() - begin.1) as f64 * 8e-9 / begin.0.elapsed().as_secs_f64();
    streams.finish()?;
    Ok(gbps)
}

/// Waits for `duration`, and records the highest resource use of the switch.
fn watch(
    bed: &mut TestBed<'_>,
    attack: Attack,
    peak: &mut PeakUsage,
    duration: Duration,
) -> Result<()> {
    let end = Instant::now() + duration;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        bed.pass(left.min(CHECK_INTERVAL))?;
        let counters = bed.counters(0)?;
        peak.megaflows = peak.megaflows.max(number(&counters, "/megaflows/megaflows"));
        peak.masks = peak.masks.max(number(&counters, "/megaflows/masks"));
        peak.late_bytes = peak.late_bytes.max(bed.footprint(0)?.resident_bytes);
        if attack == Attack::SynFlood {
            let attacker = bed.lab().guest(0, 0).name();
            for (host, port) in [attacker.as_str(), "tunnel"].into_iter().enumerate() {
                let connections = bed.port_connections(host, port)?;
                peak.connections[host] = peak.connections[host].max(connections);
            }
        }
    }
}

/// B, and the guest that receives its traffic.
fn victims<'a>(bed: &TestBed<'a>) -> [&'a Guest; 2] {
    let lab = bed.lab();
    [lab.guest(0, 1), lab.guest(1, 1)]
}

impl VictimRates {
    fn text(self) -> String {
        let Self { steady, new, tcp_gbps, attack_pps } = self;
        let mut text = format!(
            "{:.0} of {:.0} packets/s, {:.0} of {:.0} new connections/s, TCP {tcp_gbps:.2} Gb/s",
            steady.received, steady.offered, new.received, new.offered
        );
        if attack_pps > 0.0 {
            text += &format!("; A sends {attack_pps:.0} packets/s");
        }
        text
    }
}
