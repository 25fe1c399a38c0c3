//! A comparison of this crate's traffic with iperf3 (streams) and sockperf (round trips).
//!
//! Round trips are compared by their median. On a busy machine, the mean depends on the few round
//! trips that another process delayed: repeated runs of one program differ by up to 50 % in the
//! mean, 10 % in the median. Each block measures this crate twice (A/A). Two programs cannot agree
//! more closely than one program agrees with itself.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::lab::{Attachment, CONGESTION_CONTROL, Contender, Guest, Lab, Session, Shape};
use crate::process::Process;
use crate::random::shuffle;
use crate::stats::Estimate;
use crate::study::{Scenario, Timing};
use crate::traffic::load::{Load, Pattern};
use crate::traffic::ping::first_ping;
use crate::{Error, Result, Stop};

/// How long to wait for another lab session on this machine to end.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a program may take to start, and to end after its measurement.
const GRACE: Duration = Duration::from_secs(5);
/// The warm-up, in whole seconds because iperf3 accepts only whole seconds.
const WARM_UP: Duration = Duration::from_secs(1);
/// The first port of the servers. Each block uses the next one, because connections in TIME-WAIT
/// keep some programs from listening.
const FIRST_PORT: u16 = 5201;
/// Bytes of a write (stream) and of a message (round trips). 64 is the minimum for sockperf's
/// header.
const WRITE: usize = 128 << 10;
const MESSAGE: usize = 64;
/// The largest relative difference that counts as agreement.
pub const AGREEMENT: f64 = 0.1;

/// A traffic pattern that both programs can generate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Subject {
    Stream,
    TcpRoundTrips,
    UdpRoundTrips,
}

/// The measurements of both programs.
#[derive(Clone, PartialEq, Debug)]
pub struct Agreement {
    /// The traffic pattern, and the name of the other program.
    pub what: String,
    /// The unit of both rates.
    pub unit: &'static str,
    /// The rate of this crate.
    pub ours: Estimate,
    /// The rate of the other program.
    pub theirs: Estimate,
    /// The rate of this crate divided by that of the other program, within blocks.
    pub ratio: Estimate,
    /// The rate of this crate divided by its own rate in a second measurement, within blocks (A/A).
    pub noise: Estimate,
}

/// Whether two programs agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// They differ by [`AGREEMENT`] at most.
    Within,
    /// They differ by more, and noise does not explain it.
    Apart,
    /// They differ by more, and noise may explain it.
    NotConverged,
}

impl Agreement {
    /// Whether the programs agree. The noise is the end of the A/A interval that is farthest from
    /// 1.
    pub fn outcome(&self) -> Outcome {
        let (least, most) = (1.0 - AGREEMENT, 1.0 + AGREEMENT);
        let Self { ratio, noise, .. } = self;
        let factor = noise.high.max(1.0 / noise.low).max(1.0);
        if (least..=most).contains(&ratio.median) {
            Outcome::Within
        } else if ratio.low / factor > most || ratio.high * factor < least {
            Outcome::Apart
        } else {
            Outcome::NotConverged
        }
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, unit, ours, theirs, ratio, noise } = self;
        let outcome = match self.outcome() {
            Outcome::Within => "within 10 %",
            Outcome::Apart => "APART",
            Outcome::NotConverged => "not converged",
        };
        let show = |Estimate { median, low, high, .. }: &Estimate| {
            format!("{median:.2} [{low:.2}, {high:.2}]")
        };
        write!(
            f,
            "{what}: ours {:.2} {unit}, theirs {:.2} {unit}, ratio {}, A/A {}, {} runs: {outcome}",
            ours.median,
            theirs.median,
            show(ratio),
            show(noise),
            ratio.runs
        )
    }
}

/// Measures all traffic patterns with both programs, `blocks` times for `seconds` each, over one
/// veth pair.
///
/// # Errors
/// [`Error::Missing`] when a program is not installed, [`Error::Interrupted`], or
/// [`Error::Other`] when no traffic passes.
pub fn run(blocks: usize, seconds: Duration, stop: &Stop) -> Result<Vec<Agreement>> {
    let session = Session::open(PATIENCE, stop)?;
    let lab = Lab::build_as(&session, Shape { guests_per_host: 1, ..Shape::default() })?;
    let mut attachment = Contender::Direct.attach(&lab, "weft".as_ref())?;
    first_ping(lab.guest(0, 0), lab.guest(1, 0), &mut attachment, stop)?;
    let timing = Timing { warm_up: WARM_UP, measured: seconds };
    let subjects = [Subject::Stream, Subject::TcpRoundTrips, Subject::UdpRoundTrips];
    subjects.into_iter().map(|subject| subject.run(&lab, &mut attachment, blocks, timing)).collect()
}

impl Subject {
    fn run(
        self,
        lab: &Lab<'_>,
        attachment: &mut Attachment,
        blocks: usize,
        timing: Timing,
    ) -> Result<Agreement> {
        let (mut ours, mut again, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for block in 0..blocks.max(1) {
            let mut order = [0, 1, 2];
            shuffle(&mut order);
            for who in order {
                match who {
                    0 => ours.push(self.ours(lab, attachment, timing)?),
                    1 => again.push(self.ours(lab, attachment, timing)?),
                    _ => theirs.push(self.theirs(lab, self.port(block), timing)?),
                }
            }
        }
        let over = |values: &[f64], base: &[f64]| -> Vec<f64> {
            values.iter().zip(base).map(|(a, b)| a / b).collect()
        };
        let none = || Error::Other("the load produced no figure".into());
        let estimate = |values: &[f64]| Estimate::of(values).ok_or_else(none);
        let (what, unit) = match self {
            Self::Stream => ("TCP stream beside iperf3", "Gb/s"),
            Self::TcpRoundTrips => {
                ("TCP round trips beside sockperf", "of median length in a second")
            }
            Self::UdpRoundTrips => {
                ("UDP round trips beside sockperf", "of median length in a second")
            }
        };
        Ok(Agreement {
            what: what.to_owned(),
            unit,
            ours: estimate(&ours)?,
            theirs: estimate(&theirs)?,
            ratio: estimate(&over(&ours, &theirs))?,
            noise: estimate(&over(&again, &ours))?,
        })
    }

    fn ours(self, lab: &Lab<'_>, attachment: &mut Attachment, timing: Timing) -> Result<f64> {
        let load = match self {
            Self::Stream => Load::new(Pattern::TcpStream, WRITE, 1)?,
            Self::TcpRoundTrips => Load::new(Pattern::TcpRr, MESSAGE, 1)?,
            Self::UdpRoundTrips => Load::new(Pattern::UdpRr, MESSAGE, 1)?,
        };
        let figures = Scenario::one_pair(load).run(lab, attachment, timing)?;
        let value = figures.gbps.or(figures.latency_us.map(|[median, ..]| 1e6 / median));
        value.ok_or_else(|| Error::Other("the load produced no figure".into()))
    }

    fn port(self, block: usize) -> u16 {
        FIRST_PORT + 1000 * self as u16 + (block % 1000) as u16
    }

    fn theirs(self, lab: &Lab<'_>, number: u16, timing: Timing) -> Result<f64> {
        let (from, to) = (lab.guest(0, 0), lab.guest(1, 0));
        let address = to.ip4().to_string();
        let Timing { warm_up, measured } = timing;
        let seconds = measured.as_secs().max(1).to_string();
        let omitted = warm_up.as_secs().to_string();
        let port = number.to_string();
        let message = MESSAGE.to_string();
        let transport: &[&str] = if self == Self::TcpRoundTrips { &["--tcp"] } else { &[] };
        let (serve, ask): (Vec<&str>, Vec<&str>) = match self {
            Self::Stream => (
                vec!["iperf3", "-s", "-1", "-p", &port],
                vec![
                    "iperf3",
                    "-c",
                    &address,
                    "-p",
                    &port,
                    "-t",
                    &seconds,
                    "-O",
                    &omitted,
                    "-l",
                    "128K",
                    "-f",
                    "m",
                    "-C",
                    CONGESTION_CONTROL,
                ],
            ),
            _ => (
                [&["sockperf", "sr", "-i", &address, "-p", &port], transport].concat(),
                [
                    &[
                        "sockperf", "pp", "-i", &address, "-p", &port, "-m", &message, "-t",
                        &seconds,
                    ],
                    transport,
                ]
                .concat(),
            ),
        };
        let program = if self == Self::Stream { "iperf3" } else { "sockperf" };
        let mut server = Process::spawn(program, pinned(to, &serve))?;
        self.wait_until_served(lab, from, SocketAddr::new(to.ip4().into(), number))?;
        server.check_running()?;
        let client = Process::spawn(program, pinned(from, &ask))?;
        let text = client.finish(measured + warm_up + 2 * GRACE, lab.stop())?;
        drop(server);
        let value = match self {
            Self::Stream => iperf3_gbps(&text),
            _ => sockperf_rate(&text),
        };
        value.ok_or_else(|| Error::Other(format!("{program} printed no figure:\n{text}")))
    }

    /// Waits until the server accepts connections. `iperf3 -1` serves only one client, which must
    /// not be this probe, so the wait for iperf3 is a fixed 0.5 s.
    fn wait_until_served(self, lab: &Lab<'_>, from: &Guest, at: SocketAddr) -> Result<()> {
        if self != Self::TcpRoundTrips {
            return lab.stop().sleep(Duration::from_millis(500));
        }
        lab.stop().wait_for("a server that accepts", GRACE, || {
            Ok(from.run(|| TcpStream::connect_timeout(&at, GRACE))?.ok().map(drop))
        })
    }
}

/// The command in the namespace of `guest`, pinned to the guest's processor.
fn pinned(guest: &Guest, words: &[&str]) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &guest.cpu().to_string()]).args(words);
    guest.netns().command(command)
}

/// Reads `... 1.23 Mbits/sec   receiver`.
fn iperf3_gbps(text: &str) -> Option<f64> {
    let line = text.lines().rfind(|line| line.trim_end().ends_with("receiver"))?;
    let words: Vec<_> = line.split_whitespace().collect();
    let unit = words.iter().position(|word| *word == "Mbits/sec")?;
    words.get(unit.checked_sub(1)?)?.parse::<f64>().ok().map(|mbps| mbps / 1000.0)
}

/// Reads `sockperf: ---> percentile 50.000 =    5.123`, half of a round trip in microseconds.
fn sockperf_rate(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("percentile 50.000"))?;
    let us: f64 = line.split('=').nth(1)?.trim().parse().ok()?;
    (us > 0.0).then(|| 1e6 / (2.0 * us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_differ_only_when_the_difference_exceeds_the_noise() {
        let near = |median: f64, part: f64| Estimate {
            median,
            low: median * (1.0 - part),
            high: median * (1.0 + part),
            runs: 5,
        };
        let outcome = |ratio: f64, noise: Estimate| {
            let one = near(1.0, 0.0);
            let (what, unit) = (String::new(), "");
            Agreement { what, unit, ours: one, theirs: one, ratio: near(ratio, 0.01), noise }
                .outcome()
        };
        assert_eq!(outcome(1.1, near(1.0, 0.3)), Outcome::Within);
        assert_eq!(outcome(0.9, near(1.0, 0.0)), Outcome::Within);
        assert_eq!(outcome(1.2, near(1.0, 0.02)), Outcome::Apart);
        assert_eq!(outcome(0.8, near(1.0, 0.02)), Outcome::Apart);
        assert_eq!(outcome(1.2, near(1.0, 0.2)), Outcome::NotConverged);
        assert_eq!(outcome(0.8, near(0.8, 0.02)), Outcome::NotConverged);
    }

    #[test]
    fn figures_of_iperf3_and_sockperf_are_read_from_their_output() {
        let iperf3 = "[  5]   0.00-1.00   sec  2.9 GBytes  25000 Mbits/sec    0             sender\n\
                      [  5]   0.00-1.00   sec  2.9 GBytes  24900 Mbits/sec                  receiver\n\niperf Done.";
        assert_eq!(iperf3_gbps(iperf3), Some(24.9));
        let sockperf = "sockperf: ---> percentile 75.000 =   14.0\nsockperf: ---> percentile 50.000 =   12.500\n";
        assert_eq!(sockperf_rate(sockperf), Some(40_000.0));
        assert_eq!((iperf3_gbps(""), sockperf_rate("percentile 50.000 = x")), (None, None));
    }
}
