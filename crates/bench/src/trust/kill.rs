//! Kills: the daemon is killed under traffic and started again, and its remains must not be in the
//! way.

use std::time::Duration;

use super::report::{CriterionResult, TrustReport};
use super::test_bed::TestBed;
use crate::Result;
use crate::lab::GUEST_DEVICE;
use crate::stats::median;
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::frames::{Frame, socket};

/// The most time from the start of the daemon to its first answer and the first ping reply of a
/// guest. The kernel datapath forwards meanwhile.
const LIMIT: Duration = Duration::from_secs(5);
/// How long to wait for the reply before the scenario fails.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long traffic flows between two kills.
const FLOW: Duration = Duration::from_millis(300);
/// The packet rate from the other host, with or without a daemon.
const PPS: f64 = 20_000.0;

/// Kills the daemon of the first host `times` times.
///
/// # Errors
/// The test bed fails.
pub fn run(bed: &mut TestBed<'_>, times: usize) -> Result<TrustReport> {
    let lab = bed.lab();
    let (killed, other) = (lab.guest(0, 0), lab.guest(1, 0));
    let template = Frame::udp_template((other.mac(), other.ip4()), (killed.mac(), killed.ip4()));
    let traffic =
        Blast::start(socket(other)?, template, |_, _| (), Pace::PerSecond(PPS), other.cpu())?;
    let links = || -> Result<usize> { Ok(lab.hosts()[0].netlink().links()?.len()) };
    let before = (links()?, bed.footprint(0)?);
    let mut took = Vec::new();
    for _ in 0..times {
        bed.pass(FLOW)?;
        bed.kill_daemon(0)?;
        bed.start_daemon(0)?;
        let ready = bed.wait_ready(0, PATIENCE)?;
        took.push(ready + bed.wait_for_answer(killed, other, PATIENCE)?);
    }
    // Both guests must be reachable.
    bed.wait_for_answer(lab.guest(0, 1), lab.guest(1, 1), PATIENCE)?;
    let after = (links()?, bed.footprint(0)?);
    let eth0 = lab.guests()[..2].iter().all(|guest| {
        guest.netns().netlink().is_ok_and(|netlink| netlink.link(GUEST_DEVICE).is_ok())
    });
    let mut report = TrustReport::default();
    let longest = took.iter().max().copied().unwrap_or_default();
    let middle = median(took.iter().map(Duration::as_secs_f64)).unwrap_or(0.0);
    let text = format!(
        "after {} kills: median {middle:.2} s, longest {:.2} s (at most {:.0} s)",
        took.len(),
        longest.as_secs_f64(),
        LIMIT.as_secs_f64()
    );
    report.judge(CriterionResult::of(longest <= LIMIT), "recovery time", text);
    let text = format!("{} links of the host, then {}", before.0, after.0);
    report.judge(CriterionResult::of(before.0 == after.0 && eth0), "devices", text);
    let same = before.1.descriptors == after.1.descriptors && before.1.threads == after.1.threads;
    let text = format!(
        "{} descriptors and {} threads, then {} and {}",
        before.1.descriptors, before.1.threads, after.1.descriptors, after.1.threads
    );
    report.judge(CriterionResult::of(same), "descriptors and threads", text);
    report.note("traffic during the kills", format!("{} packets", traffic.finish()));
    Ok(report)
}
