//! Interruptions: kills, stops, reloads, a crash loop and changes of the program, one after
//! another, under traffic of up to a million flows at fixed rates. Counts lost packets by flow and
//! flows that stay interrupted, and measures the longest gap.

use std::path::Path;
use std::time::{Duration, Instant};

use netdev::Netns;
use network::TunnelType;

use super::report::{CriterionResult, TrustReport};
use super::test_bed::{TestBed, number};
use crate::Result;
use crate::lab::{Guest, Lab, NO_CPU_LIMIT, network_toml};
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::connections::{acl, connection_lists, connections};
use crate::traffic::flow_sink::{FlowLosses, FlowSink};
use crate::traffic::frames::{socket, socket_in};

/// The time between two packets of one of the many flows. Megaflows expire after 10 s without a
/// packet.
const INTERVAL: Duration = Duration::from_secs(5);
/// The time between two packets of a flow with fewer than [`FEW`] flows.
const SHORT_INTERVAL: Duration = Duration::from_secs(1);
const FEW: usize = 10_000;
/// The flows whose gaps are measured, in each direction, and the time between two packets of each.
const DENSE: (usize, Duration) = (50, Duration::from_millis(10));
/// The same for fewer than [`FEW`] flows: a short run that leaves processor time to other programs.
const SHORT_DENSE: (usize, Duration) = (5, Duration::from_millis(20));
/// The longest gap of an established flow with the kernel datapath.
const GAP_LIMIT: Duration = Duration::from_millis(100);
/// The longest gap with the user datapath. It does not forward while the daemon is not running.
const USER_GAP_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take until each flow has a megaflow.
const ESTABLISH_LIMIT: Duration = Duration::from_secs(180);
/// How long a daemon may take until its first response.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a flow may stay silent before it counts as interrupted for good.
const RETURN_LIMIT: Duration = Duration::from_secs(30);
/// How long the last packets may take to arrive.
const DRAIN: Duration = Duration::from_millis(500);
/// The number of kills in a crash loop, and how long each daemon runs.
const CRASHES: (usize, Duration) = (10, Duration::from_millis(300));
/// The number of kills in a crash loop with few flows.
const FEW_CRASHES: usize = 4;
/// The offset of the UDP payload in a frame with its virtio-net header.
const PAYLOAD: usize = 10 + 14 + 20 + 8;

/// An interruption of the first host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Interruption {
    /// No interruption, for comparison.
    Nothing,
    /// `weft reload` with an additional logical switch.
    Reload,
    /// `weft reload` with an additional port of the guests' logical switch.
    ReloadPort,
    /// `weft reload` with an additional entry of the logical switch's access control list.
    ReloadList,
    /// SIGKILL, then a new daemon.
    Kill,
    /// `weft stop`, then a new daemon.
    StopAndStart,
    /// SIGKILL shortly after each start.
    CrashLoop,
    /// `weft stop`, then a daemon of the older program.
    Downgrade,
    /// `weft stop`, then a daemon of the newer program.
    Upgrade,
}

impl Interruption {
    const fn is_reload(self) -> bool {
        matches!(self, Self::Reload | Self::ReloadPort | Self::ReloadList)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Reload => "reload",
            Self::ReloadPort => "reload with a port",
            Self::ReloadList => "reload with an ACL",
            Self::Kill => "kill -9",
            Self::StopAndStart => "stop and start",
            Self::CrashLoop => "crash loop",
            Self::Downgrade => "downgrade",
            Self::Upgrade => "upgrade",
        }
    }
}

/// The network of this scenario.
pub fn network(lab: &Lab<'_>) -> String {
    with_more(lab, "")
}

/// The network with `more` in its logical switch.
fn with_more(lab: &Lab<'_>, more: &str) -> String {
    let network = network_toml(lab, TunnelType::Geneve);
    [NO_CPU_LIMIT, &network, more, &connection_lists()].concat()
}

/// The network after a reload: `by` adds something that affects none of the flows.
fn changed_network(lab: &Lab<'_>, by: Interruption) -> String {
    let switch = "\n[[logical_switch]]\nname = \"passing\"\nvni = 102\n";
    let port = "\n[[logical_switch.port]]\nname = \"more\"\nhost = \"h2\"\n\
                mac = \"02:00:00:00:77:01\"\ndevice = { tap = \"more\" }\n";
    match by {
        Interruption::ReloadPort => with_more(lab, port),
        Interruption::ReloadList => network(lab) + &acl(950, "tcp.dst == 23", "drop"),
        _ => network(lab) + switch,
    }
}

/// Packets of many flows in one direction.
struct Series {
    flows: usize,
    blast: Blast,
    sink: FlowSink,
}

impl Series {
    fn start(from: &Guest, to: &Guest, (flows, interval): (usize, Duration)) -> Result<Self> {
        let sink = FlowSink::start(to, to.ip4().into(), flows)?;
        let (template, mut change) = connections(from, to, sink.port(), 0);
        let change = move |number: u64, bytes: &mut [u8]| {
            change(number % flows as u64, bytes);
            if let Some(place) = bytes.get_mut(PAYLOAD..PAYLOAD + 8) {
                place.copy_from_slice(&number.to_be_bytes());
            }
        };
        let pace = Pace::PerSecond(flows as f64 / interval.as_secs_f64());
        let (guest, again) = (socket(from)?, Netns::clone(from.netns()));
        let reopen = move || socket_in(&again).ok();
        let blast = Blast::start_reopening(guest, reopen, template, change, pace, from.cpu())?;
        Ok(Self { flows, blast, sink })
    }

    /// The number of flows of which no packet has arrived since packet number `first`.
    fn silent_since(&self, first: u64) -> usize {
        let now = self.blast.next_number();
        // A range shorter than a round does not contain every flow.
        let end = now.max(first + self.flows as u64);
        self.sink.losses(first..end).silent_flows
    }
}

/// The programs of the scenario.
#[derive(Clone, Copy, Debug)]
pub struct Programs<'a> {
    /// The program under test.
    pub new: &'a Path,
    /// An older one, if there is one.
    pub old: Option<&'a Path>,
}

/// Applies every interruption to the daemon of the first host, while guests send `flows` UDP flows.
///
/// # Errors
/// The test bed fails.
pub fn run<'a>(
    bed: &mut TestBed<'a>,
    programs: Programs<'a>,
    flows: usize,
    only_reloads: bool,
) -> Result<TrustReport> {
    let lab = bed.lab();
    let (near, far) = (lab.guest(0, 0), lab.guest(1, 0));
    let (interval, dense) =
        if flows < FEW { (SHORT_INTERVAL, SHORT_DENSE) } else { (INTERVAL, DENSE) };
    let many = Series::start(near, far, (flows, interval))?;
    let dense = [Series::start(near, far, dense)?, Series::start(far, near, dense)?];
    let mut report = TrustReport::default();
    let mut all = vec![
        Interruption::Nothing,
        Interruption::Reload,
        Interruption::ReloadPort,
        Interruption::ReloadList,
        Interruption::Kill,
        Interruption::StopAndStart,
        Interruption::CrashLoop,
    ];
    if programs.old.is_some() {
        all.extend([Interruption::Downgrade, Interruption::Upgrade]);
    }
    // The check loads eBPF programs, so it is done only once.
    let forwards = bed.forwards_without_daemon();
    if only_reloads {
        all.retain(|it| *it == Interruption::Nothing || it.is_reload());
    }
    for interruption in all {
        establish(bed, flows, interval)?;
        let series = [&many, &dense[0], &dense[1]];
        series.iter().for_each(|series| series.sink.begin_window());
        let first = series.map(|series| series.blast.next_number());
        let took = interrupt(bed, interruption, programs, flows)?;
        // Each flow sends a packet after the interruption, and then a second one.
        bed.pass(interval * 21 / 10)?;
        let end = series.map(|series| series.blast.next_number());
        let pauses = [&dense[0], &dense[1]].map(|series| series.sink.longest_pause());
        bed.pass(DRAIN)?;
        let lost: Vec<_> = (0..3).map(|at| series[at].sink.losses(first[at]..end[at])).collect();
        // The last round of the measured packets begins after the interruption.
        let last = [0, 1, 2].map(|at| end[at].saturating_sub(series[at].flows as u64));
        let returned = Instant::now();
        let silent = || [0, 1, 2].map(|at| series[at].silent_since(last[at]));
        while silent() != [0; 3] && returned.elapsed() < RETURN_LIMIT {
            bed.pass(DRAIN)?;
        }
        let losses: Vec<_> = lost.into_iter().zip(silent()).collect();
        let must_forward = forwards || interruption.is_reload();
        judge(&mut report, interruption, must_forward, &losses, pauses, took);
    }
    report
        .note(NO_CPU_LIMIT.trim_end(), "a guest of the scenario stands for those of a whole host");
    let duplicates = many.sink.duplicates();
    let text = format!("{duplicates} packets");
    report.judge(CriterionResult::of(duplicates == 0), "received twice", text);
    Ok(report)
}

/// Waits until the first host has a megaflow for each flow.
fn establish(bed: &mut TestBed<'_>, flows: usize, interval: Duration) -> Result<()> {
    let stop = bed.stop_flag();
    stop.wait_for("a megaflow for each flow", ESTABLISH_LIMIT, || {
        bed.check()?;
        let megaflows = number(&bed.counters(0)?, "/megaflows/megaflows");
        Ok((megaflows >= flows as u64).then_some(()))
    })?;
    bed.pass(interval * 6 / 5)
}

/// Interrupts the first host. Returns how long it took until the daemon responded again.
fn interrupt<'a>(
    bed: &mut TestBed<'a>,
    interruption: Interruption,
    programs: Programs<'a>,
    flows: usize,
) -> Result<Duration> {
    let start = Instant::now();
    match interruption {
        Interruption::Nothing => return Ok(Duration::ZERO),
        Interruption::Reload | Interruption::ReloadPort | Interruption::ReloadList => {
            let lab = bed.lab();
            bed.reload(0, &changed_network(lab, interruption))?;
            return Ok(start.elapsed());
        }
        Interruption::Kill => bed.kill_daemon(0)?,
        Interruption::StopAndStart => bed.stop_daemon(0)?,
        Interruption::CrashLoop => {
            bed.kill_daemon(0)?;
            for _ in 1..if flows < FEW { FEW_CRASHES } else { CRASHES.0 } {
                bed.start_daemon(0)?;
                bed.pass(CRASHES.1)?;
                bed.kill_daemon(0)?;
            }
        }
        Interruption::Downgrade | Interruption::Upgrade => {
            bed.stop_daemon(0)?;
            let old = programs.old.filter(|_| interruption == Interruption::Downgrade);
            bed.set_program(0, old.unwrap_or(programs.new));
        }
    }
    bed.start_daemon(0)?;
    bed.wait_ready(0, PATIENCE)?;
    Ok(start.elapsed())
}

fn judge(
    report: &mut TrustReport,
    interruption: Interruption,
    must_forward: bool,
    losses: &[(FlowLosses, usize)],
    pauses: [Duration; 2],
    took: Duration,
) {
    let name = interruption.name();
    for ((losses, silent), which) in
        losses.iter().zip(["all flows", "dense flows out", "dense flows in"])
    {
        let FlowLosses { packets, lost, flows_with_losses, most_of_a_flow, .. } = losses;
        let text = format!(
            "{lost} of {packets} packets lost, in {flows_with_losses} flows, at most \
             {most_of_a_flow} of one; {silent} flows did not come back"
        );
        let good = *silent == 0 && (*lost == 0 || !must_forward);
        report.judge(CriterionResult::of(good), format!("{name}, {which}"), text);
    }
    let [out, back] = pauses.map(|pause| pause.as_millis());
    let limit = if must_forward { GAP_LIMIT } else { USER_GAP_LIMIT };
    let text = format!("{out} ms out, {back} ms in (at most {} ms)", limit.as_millis());
    let good = pauses.iter().all(|pause| *pause <= limit);
    report.judge(CriterionResult::of(good), format!("{name}, longest gap"), text);
    report.note(format!("{name}, daemon absent"), format!("{:.2} s", took.as_secs_f64()));
}
