//! Kills: the daemon is killed under traffic and started again. State that it left behind must not
//! disturb its successor.

use std::time::Duration;

use super::report::{CriterionResult, TrustReport};
use super::test_bed::{TestBed, number};
use crate::Result;
use crate::lab::GUEST_DEVICE;
use crate::stats::median;
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::connections::connections;
use crate::traffic::frames::socket;
use crate::traffic::sink::Sink;

/// The longest time from the start of the daemon to its first response and the first ping reply of
/// a guest. The kernel datapath forwards meanwhile.
const LIMIT: Duration = Duration::from_secs(5);
/// How long to wait for the response and the reply before the scenario fails.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long traffic runs between two kills.
const FLOW: Duration = Duration::from_millis(300);
/// The lowest packet rate of the guest, with or without a daemon.
const PPS: f64 = 20_000.0;
/// The longest time between two packets of a flow. Megaflows expire after 10 s without a packet.
const FLOW_INTERVAL: f64 = 5.0;
/// How long it may take until each flow has a megaflow.
const ESTABLISH_LIMIT: Duration = Duration::from_secs(120);
/// How long the last packets may take to arrive.
const DRAIN: Duration = Duration::from_millis(500);

/// Kills the daemon of the first host `times` times, while its guest sends `flows` UDP flows.
///
/// # Errors
/// The test bed fails.
pub fn run(bed: &mut TestBed<'_>, times: usize, flows: usize) -> Result<TrustReport> {
    let lab = bed.lab();
    let (killed, other) = (lab.guest(0, 0), lab.guest(1, 0));
    let sink = Sink::start(other, other.ip4().into())?;
    let pace = Pace::PerSecond(PPS.max(flows as f64 / FLOW_INTERVAL));
    let send = || {
        let (template, mut change) = connections(killed, other, sink.port(), 0);
        let change = move |number: u64, bytes: &mut [u8]| change(number % flows as u64, bytes);
        Blast::start(socket(killed)?, template, change, pace, killed.cpu())
    };
    let established = establish(bed, &send, flows)?;
    let links = || -> Result<usize> { Ok(lab.hosts()[0].netlink().links()?.len()) };
    let before = (links()?, bed.footprint(0)?);
    let received = sink.received();
    let traffic = send()?;
    let mut took = Vec::new();
    for _ in 0..times {
        bed.pass(FLOW)?;
        bed.kill_daemon(0)?;
        bed.start_daemon(0)?;
        let ready = bed.wait_ready(0, PATIENCE)?;
        took.push(ready + bed.wait_for_answer(killed, other, PATIENCE)?);
    }
    let sent = traffic.finish();
    bed.pass(DRAIN)?;
    let lost = sent.saturating_sub(sink.received() - received);
    // Both guests of the host must be reachable.
    bed.wait_for_answer(lab.guest(0, 1), lab.guest(1, 1), PATIENCE)?;
    let after = (links()?, bed.footprint(0)?);
    let eth0 = lab.guests()[..2].iter().all(|guest| {
        guest.netns().netlink().is_ok_and(|netlink| netlink.link(GUEST_DEVICE).is_ok())
    });
    let mut report = TrustReport::default();
    judge_recovery(&mut report, &took);
    let text = format!("{} links of the host, then {}", before.0, after.0);
    report.judge(CriterionResult::of(before.0 == after.0 && eth0), "devices", text);
    let same = before.1.descriptors == after.1.descriptors && before.1.threads == after.1.threads;
    let text = format!(
        "{} descriptors and {} threads, then {} and {}",
        before.1.descriptors, before.1.threads, after.1.descriptors, after.1.threads
    );
    report.judge(CriterionResult::of(same), "descriptors and threads", text);
    note_drops(&mut report, bed)?;
    let text = format!("{lost} of {sent} packets of {flows} flows, {established} megaflows");
    if bed.forwards_without_daemon() {
        report.judge(CriterionResult::of(lost == 0), "lost packets", text);
    } else {
        report.note("lost packets", text);
    }
    Ok(report)
}

/// Judges how long the daemon took after each kill.
fn judge_recovery(report: &mut TrustReport, took: &[Duration]) {
    let longest = took.iter().max().copied().unwrap_or_default();
    let middle = median(took.iter().map(Duration::as_secs_f64)).unwrap_or(0.0);
    let text = format!(
        "after {} kills: median {middle:.2} s, longest {:.2} s (at most {:.0} s)",
        took.len(),
        longest.as_secs_f64(),
        LIMIT.as_secs_f64()
    );
    report.judge(CriterionResult::of(longest <= LIMIT), "recovery time", text);
}

/// Adds to the report the drops on the path of the flows, by reason.
fn note_drops(report: &mut TrustReport, bed: &TestBed<'_>) -> Result<()> {
    let (killed, other) = (bed.counters(0)?, bed.counters(1)?);
    for (what, counters, path) in [
        ("drops of the guest's port", &killed, "/ports/0/drops"),
        ("drops of the killed host's uplink", &killed, "/uplink/drops"),
        ("drops of the other host's uplink", &other, "/uplink/drops"),
        ("drops of the other host's port", &other, "/ports/0/drops"),
    ] {
        if let Some(drops) = counters.pointer(path) {
            report.note(what, drops.to_string());
        }
    }
    Ok(())
}

/// Sends every flow until the first host has a megaflow for each. Returns the number of megaflows.
fn establish(bed: &mut TestBed<'_>, send: &dyn Fn() -> Result<Blast>, flows: usize) -> Result<u64> {
    let traffic = send()?;
    let stop = bed.stop_flag();
    let established = stop.wait_for("a megaflow for each flow", ESTABLISH_LIMIT, || {
        bed.check()?;
        let megaflows = number(&bed.counters(0)?, "/megaflows/megaflows");
        Ok((megaflows >= flows as u64).then_some(megaflows))
    })?;
    // The number includes megaflows of other packets, so each flow is sent twice more.
    bed.pass(Duration::from_secs_f64(2.0 * FLOW_INTERVAL))?;
    traffic.finish();
    bed.pass(DRAIN)?;
    Ok(established)
}
