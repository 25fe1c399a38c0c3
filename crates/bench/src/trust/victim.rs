//! Measures what a guest achieves beside a hostile one: steady packets, new connections, round-trip
//! times and TCP throughput.

use std::time::{Duration, Instant};

use super::attack::Attack;
use super::peak::PeakUsage;
use super::test_bed::TestBed;
use crate::lab::Guest;
use crate::stats::median;
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::connections::connections;
use crate::traffic::flow::{Flow, Traffic};
use crate::traffic::frames::{Frame, socket};
use crate::traffic::ping::Pinger;
use crate::traffic::sink::Sink;
use crate::{Error, Result};

/// B's steady packet rate, on one connection.
const STEADY_PPS: f64 = 20_000.0;
/// B's rate of new connections.
const NEW_PPS: f64 = 1_000.0;
/// The time between two echo requests of B.
const PING_INTERVAL: Duration = Duration::from_millis(5);
/// How long B may take to establish a TCP connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long TCP may start up (slow start) before the measurement begins.
const TCP_START: Duration = Duration::from_millis(300);
/// How long a UDP stream through stateful ACLs runs before the measurement: until it counts as
/// established.
const STREAM_START: Duration = Duration::from_secs(3);
/// The rate of the replies to the steady packets.
const REPLY_PPS: f64 = 20.0;

/// What B achieves.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct VictimRates {
    /// The part of the steady packets that arrives, 0 to 1.
    pub steady: f64,
    /// The part of the new connections whose packet arrives, 0 to 1.
    pub new: f64,
    /// The median round-trip time, in microseconds. Infinite if there is no reply.
    pub rtt_us: f64,
    /// The throughput of one TCP connection, in Gb/s.
    pub tcp_gbps: f64,
}

impl VictimRates {
    /// The median of each figure.
    pub fn median(all: &[Self]) -> Self {
        let of = |get: fn(&Self) -> f64| median(all.iter().map(get)).unwrap_or(0.0);
        Self {
            steady: of(|rates| rates.steady),
            new: of(|rates| rates.new),
            rtt_us: of(|rates| rates.rtt_us),
            tcp_gbps: of(|rates| rates.tcp_gbps),
        }
    }

    /// A line for the report.
    pub fn text(self) -> String {
        let Self { steady, new, rtt_us, tcp_gbps } = self;
        format!(
            "{steady:.4} of {STEADY_PPS} packets/s, {new:.3} of {NEW_PPS} new connections/s, \
             {rtt_us:.0} us round trip, TCP {tcp_gbps:.2} Gb/s"
        )
    }
}

/// Measures B: each of UDP with new connections, pings and TCP for a third of `duration`. Records
/// in `peak` the resources that the switch uses meanwhile.
///
/// # Errors
/// B cannot establish a TCP connection, or the test bed fails.
pub fn measure(
    bed: &mut TestBed<'_>,
    attack: Attack,
    duration: Duration,
    peak: &mut PeakUsage,
) -> Result<VictimRates> {
    let (steady, new) = udp(bed, attack, duration / 3, peak)?;
    let rtt_us = round_trip(bed, duration / 3)?;
    let tcp_gbps = tcp(bed, attack, duration / 3, peak)?;
    Ok(VictimRates { steady, new, rtt_us, tcp_gbps })
}

/// The parts of the steady packets and of the new connections that arrive.
fn udp(
    bed: &mut TestBed<'_>,
    attack: Attack,
    duration: Duration,
    peak: &mut PeakUsage,
) -> Result<(f64, f64)> {
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
    let before = counts();
    peak.watch(bed, attack, duration)?;
    let after = counts();
    let part = |which: usize| {
        let [offered, received] = [0, 1].map(|what| after[which][what] - before[which][what]);
        received as f64 / offered.max(1) as f64
    };
    Ok((part(0), part(1)))
}

/// The median round-trip time of pings, in microseconds.
fn round_trip(bed: &mut TestBed<'_>, duration: Duration) -> Result<f64> {
    let [from, to] = victims(bed);
    let mut pinger = from.run(|| Pinger::open(to.ip4().into()))??;
    let report = pinger.run_for(duration, PING_INTERVAL, bed.stop_flag())?;
    bed.check()?;
    // Late replies are none: half of them missing is no median.
    let most_replied = report.received * 2 > report.sent;
    Ok(report.rtt_median_us.filter(|_| most_replied).unwrap_or(f64::INFINITY))
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
    peak.watch(bed, attack, duration)?;
    let gbps = (bytes() - begin.1) as f64 * 8e-9 / begin.0.elapsed().as_secs_f64();
    streams.finish()?;
    Ok(gbps)
}

/// B, and the guest that receives its traffic.
fn victims<'a>(bed: &TestBed<'a>) -> [&'a Guest; 2] {
    let lab = bed.lab();
    [lab.guest(0, 1), lab.guest(1, 1)]
}
