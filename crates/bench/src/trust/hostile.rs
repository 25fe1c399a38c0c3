//! One guest means ill: what the others keep, and what the switch takes of the machine.
//!
//! On the first host guest A attacks, and guest B has a stream of UDP packets at a steady rate, sets up connections at a steady
//! rate, and sends TCP as fast as it goes. B is measured alone, besides the attack, and alone again.
//!
//! On this machine all guests and both switches share the processors, and what A's sender takes of them is not the switch's doing. So of
//! the steady packets it counts how many of those arrive that B could send; and TCP, which takes all that there is, may be compared with
//! what it gets while A sends as many packets of *one* connection, which cost the switch as little as packets can: those of a scan, which
//! end nowhere, are compared with packets that are dropped at once.

use std::time::{Duration, Instant};

use super::attack::Attack;
use super::report::{Outcome, Verdict};
use super::stage::{Footprint, Stage, number};
use crate::lab::Guest;
use crate::traffic::between::{Flow, Traffic};
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::connections::connections;
use crate::traffic::frames::{Frame, socket};
use crate::traffic::sink::Sink;
use crate::{Error, Result};

/// B's packets a second, of one connection.
const STEADY_PPS: f64 = 20_000.0;
/// B's new connections a second.
const NEW_PPS: f64 = 1_000.0;
/// Throughput that B keeps, at least.
const KEPT_THROUGHPUT: f64 = 0.8;
/// New connections that B keeps, at least.
const KEPT_SETUPS: f64 = 0.9;
/// Megaflows of a switch, at most: the default of the switch.
const MEGAFLOWS: u64 = 200_000;
/// Masks of a port, at most, and the one for what is cached one by one.
const MASKS_PER_PORT: u64 = 257;
/// Memory may still grow by this after the attack has had its time: megaflows come and go, and an allocator keeps its pages.
const FLAT: f64 = 1.10;
/// The time that an attack has, at least: twice as long as megaflows stay without a packet, so that the first ones have gone and others come.
const WARM_UP: Duration = Duration::from_secs(20);
/// How long it is tried to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How often the switch is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// TCP's start, which is not measured.
const TCP_START: Duration = Duration::from_millis(300);

/// What B gets.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Share {
    steady: Arrived,
    new: Arrived,
    tcp_gbps: f64,
    attack_pps: f64,
}

/// Packets a second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Arrived {
    /// Those that the sender had the time to offer to its device.
    offered: f64,
    /// Those that arrived.
    received: f64,
}

impl Arrived {
    fn part(self) -> f64 {
        self.received / self.offered.max(f64::MIN_POSITIVE)
    }
}

/// The most that was seen of the switch.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    megaflows: u64,
    masks: u64,
    /// Resident bytes over time.
    warm_bytes: u64,
    late_bytes: u64,
}

/// Runs `attack` with A sending at `pace`; each measurement takes `seconds`.
///
/// # Errors
/// The stage fails: whether B suffers is in the outcome.
pub fn run(
    attack: Attack,
    stage: &mut Stage<'_>,
    pace: Pace,
    seconds: Duration,
) -> Result<Outcome> {
    let lab = stage.lab();
    let (bad, target) = (lab.guest(0, 0), lab.guest(1, 0));
    let mut outcome = Outcome::default();
    let mut peak = Peak::default();
    let before = share(stage, None, seconds, &mut Peak::default())?;
    let idle = stage.footprint(0)?;

    let (template, change) = attack.packets(bad, target);
    let blast = Blast::start(socket(bad)?, template, change, pace, bad.cpu())?;
    // Until the caches are full the switch may grow.
    watch(stage, &mut peak, seconds.max(WARM_UP))?;
    let warm = stage.footprint(0)?.resident_bytes;
    peak.warm_bytes = std::mem::take(&mut peak.late_bytes).max(warm);
    let during = share(stage, Some(&blast), seconds, &mut peak)?;
    let refused = blast.refused();
    let sent = blast.finish();
    let full = stage.footprint(0)?;
    peak.late_bytes = peak.late_bytes.max(full.resident_bytes);
    let counters = stage.counters(0)?;
    let far = stage.counters(1)?;
    let switch = stage.switch_counters(0).ok();

    let after = share(stage, None, seconds, &mut Peak::default())?;
    let plain = {
        let template = attack.harmless(bad, target);
        let pace = Pace::PerSecond(during.attack_pps);
        let same = Blast::start(socket(bad)?, template, |_, _| (), pace, bad.cpu())?;
        share(stage, Some(&same), seconds, &mut Peak::default())?
    };

    outcome.note("B alone", before.text());
    outcome.note("B besides the attack", during.text());
    outcome.note("B alone again", after.text());
    outcome.note("B besides as many packets of one connection", plain.text());
    outcome.note("attack", format!("{sent} packets taken by the device, {refused} times refused"));
    judge_share(&mut outcome, [before, after], during, plain);
    judge_bounds(&mut outcome, &peak, idle, full);
    for (what, counters, path) in [
        ("drops of A's port", &counters, "/ports/0/drops"),
        ("drops of B's port", &counters, "/ports/1/drops"),
        ("drops of the other host", &far, "/uplink/drops"),
    ] {
        outcome.note(what, counters.pointer(path).map_or_else(String::new, ToString::to_string));
    }
    if let Some(switch) = switch {
        outcome.note("switch", switch.to_string());
    }
    Ok(outcome)
}

fn judge_share(outcome: &mut Outcome, alone: [Share; 2], during: Share, plain: Share) {
    for (what, get, least) in [
        ("steady UDP", (|share| share.steady) as fn(&Share) -> Arrived, KEPT_THROUGHPUT),
        ("new connections", |share| share.new, KEPT_SETUPS),
    ] {
        let alone = f64::midpoint(get(&alone[0]).part(), get(&alone[1]).part());
        let kept = get(&during).part() / alone.max(f64::MIN_POSITIVE);
        let verdict = Verdict::of(kept >= least);
        outcome.judge(verdict, format!("{what} kept"), format!("{kept:.3} (at least {least:.2})"));
    }
    let kept = during.tcp_gbps / plain.tcp_gbps.max(f64::MIN_POSITIVE);
    let alone = f64::midpoint(alone[0].tcp_gbps, alone[1].tcp_gbps);
    let of_alone = during.tcp_gbps / alone.max(f64::MIN_POSITIVE);
    let text = format!(
        "{of_alone:.2} of what B has alone, {kept:.2} of what one connection of A leaves (one of them at least {KEPT_THROUGHPUT:.2})"
    );
    let verdict = Verdict::of(kept.max(of_alone) >= KEPT_THROUGHPUT);
    outcome.judge(verdict, "TCP kept", text);
}

fn judge_bounds(outcome: &mut Outcome, peak: &Peak, idle: Footprint, full: Footprint) {
    let ports = 6;
    let verdict = Verdict::of(peak.megaflows <= MEGAFLOWS);
    outcome.judge(verdict, "megaflows", format!("{} (at most {MEGAFLOWS})", peak.megaflows));
    let most = MASKS_PER_PORT * ports;
    outcome.judge(
        Verdict::of(peak.masks <= most),
        "masks",
        format!("{} (at most {most})", peak.masks),
    );
    let growth = peak.late_bytes as f64 / peak.warm_bytes.max(1) as f64;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let text = format!(
        "{:.1} MiB idle, {:.1} MiB when warm, {:.1} MiB in the end: {growth:.3} (at most {FLAT})",
        mib(idle.resident_bytes),
        mib(peak.warm_bytes),
        mib(peak.late_bytes)
    );
    outcome.judge(Verdict::of(growth <= FLAT), "memory", text);
    let same = (idle.descriptors, idle.threads) == (full.descriptors, full.threads);
    let text = format!(
        "{} descriptors and {} threads, then {} and {}",
        idle.descriptors, idle.threads, full.descriptors, full.threads
    );
    outcome.judge(Verdict::of(same), "descriptors and threads", text);
}

/// Measures B: half of the time UDP and new connections, half of it TCP.
fn share(
    stage: &mut Stage<'_>,
    attack: Option<&Blast>,
    seconds: Duration,
    peak: &mut Peak,
) -> Result<Share> {
    let lab = stage.lab();
    let (from, to) = (lab.guest(0, 1), lab.guest(1, 1));
    let begin = (Instant::now(), attack.map_or(0, Blast::sent));
    let (steady, new) = udp(stage, (from, to), seconds / 2, peak)?;
    let tcp_gbps = tcp(stage, (from, to), seconds / 2, peak)?;
    let attack_packets = attack.map_or(0, Blast::sent) - begin.1;
    let attack_pps = attack_packets as f64 / begin.0.elapsed().as_secs_f64();
    Ok(Share { steady, new, tcp_gbps, attack_pps })
}

/// Packets a second of the stream, and of new connections, that arrive.
fn udp(
    stage: &mut Stage<'_>,
    (from, to): (&Guest, &Guest),
    duration: Duration,
    peak: &mut Peak,
) -> Result<(Arrived, Arrived)> {
    let sinks = [Sink::start(to, to.ip4().into())?, Sink::start(to, to.ip4().into())?];
    let mut template = Frame::udp_template((from.mac(), from.ip4()), (to.mac(), to.ip4()));
    Frame::of(&mut template).set_ports(5000, sinks[0].port());
    let steady =
        Blast::start(socket(from)?, template, |_, _| (), Pace::PerSecond(STEADY_PPS), from.cpu())?;
    // Another series each time, so that nothing is there from the last one.
    let seed = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(sinks[1].port()) << 20;
    let (template, change) = connections(from, to, sinks[1].port(), seed);
    let new = Blast::start(socket(from)?, template, change, Pace::PerSecond(NEW_PPS), from.cpu())?;
    stage.pass(TCP_START)?;
    let pairs = [(&steady, &sinks[0]), (&new, &sinks[1])];
    let counts = || pairs.map(|(blast, sink)| [blast.sent() + blast.refused(), sink.received()]);
    let (begin, before) = (Instant::now(), counts());
    watch(stage, peak, duration)?;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), counts());
    let rate = |which: usize, what: usize| {
        after[which][what].saturating_sub(before[which][what]) as f64 / seconds
    };
    let arrived = |which| Arrived { offered: rate(which, 0), received: rate(which, 1) };
    Ok((arrived(0), arrived(1)))
}

fn tcp(
    stage: &mut Stage<'_>,
    (from, to): (&Guest, &Guest),
    duration: Duration,
    peak: &mut Peak,
) -> Result<f64> {
    let flow = Flow::stream(from, to, to.ip4().into())?;
    let stop = stage.stop_flag();
    // Of a machine with more to do than it can, any packet may be lost once; how much B gets is judged, not this.
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
    stage.pass(TCP_START)?;
    let bytes = || streams.received().iter().sum::<u64>();
    let begin = (Instant::now(), bytes());
    watch(stage, peak, duration)?;
    let gbps = (bytes() - begin.1) as f64 * 8e-9 / begin.0.elapsed().as_secs_f64();
    streams.finish()?;
    Ok(gbps)
}

/// Lets time pass, and notes the most that the switch has of everything.
fn watch(stage: &mut Stage<'_>, peak: &mut Peak, duration: Duration) -> Result<()> {
    let end = Instant::now() + duration;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stage.pass(left.min(LOOK))?;
        let counters = stage.counters(0)?;
        peak.megaflows = peak.megaflows.max(number(&counters, "/megaflows/megaflows"));
        peak.masks = peak.masks.max(number(&counters, "/megaflows/masks"));
        peak.late_bytes = peak.late_bytes.max(stage.footprint(0)?.resident_bytes);
    }
}

impl Share {
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
