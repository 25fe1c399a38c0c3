//! The daemon is killed under traffic and started again at once: nothing that it leaves behind is in the way.

use std::time::Duration;

use super::report::{Outcome, Verdict};
use super::stage::Stage;
use crate::Result;
use crate::lab::GUEST_DEVICE;
use crate::stats::median;
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::frames::{Frame, socket};

/// From the start of the daemon to the first answer of a guest, at most.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a failure is waited for until it is one.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long traffic flows between two kills.
const FLOW: Duration = Duration::from_millis(300);
/// Packets a second from the other host, which come whether or not there is a daemon.
const PPS: f64 = 20_000.0;

/// Kills the daemon of the first host `times` times.
///
/// # Errors
/// The stage fails.
pub fn run(stage: &mut Stage<'_>, times: usize) -> Result<Outcome> {
    let lab = stage.lab();
    let (killed, other) = (lab.guest(0, 0), lab.guest(1, 0));
    let template = Frame::udp_template((other.mac(), other.ip4()), (killed.mac(), killed.ip4()));
    let traffic =
        Blast::start(socket(other)?, template, |_, _| (), Pace::PerSecond(PPS), other.cpu())?;
    let links = || -> Result<usize> { Ok(lab.hosts()[0].netlink().links()?.len()) };
    let before = (links()?, stage.footprint(0)?);
    let mut took = Vec::new();
    for _ in 0..times {
        stage.pass(FLOW)?;
        stage.kill_daemon(0)?;
        stage.start_daemon(0)?;
        took.push(stage.wait_for_answer(killed, other, PATIENCE)?);
    }
    // Of both guests.
    stage.wait_for_answer(lab.guest(0, 1), lab.guest(1, 1), PATIENCE)?;
    let after = (links()?, stage.footprint(0)?);
    let eth0 = lab.guests()[..2].iter().all(|guest| {
        guest.netns().netlink().is_ok_and(|netlink| netlink.link(GUEST_DEVICE).is_ok())
    });
    let mut outcome = Outcome::default();
    let longest = took.iter().max().copied().unwrap_or_default();
    let middle = median(took.iter().map(Duration::as_secs_f64)).unwrap_or(0.0);
    let text = format!(
        "after {} kills: {middle:.2} s in the middle, {:.2} s at most (at most {:.0} s)",
        took.len(),
        longest.as_secs_f64(),
        LIMIT.as_secs_f64()
    );
    outcome.judge(Verdict::of(longest <= LIMIT), "traffic again", text);
    let text = format!("{} links of the host, then {}", before.0, after.0);
    outcome.judge(Verdict::of(before.0 == after.0 && eth0), "devices", text);
    let same = before.1.descriptors == after.1.descriptors && before.1.threads == after.1.threads;
    let text = format!(
        "{} descriptors and {} threads, then {} and {}",
        before.1.descriptors, before.1.threads, after.1.descriptors, after.1.threads
    );
    outcome.judge(Verdict::of(same), "descriptors and threads", text);
    outcome.note("traffic meanwhile", format!("{} packets", traffic.finish()));
    Ok(outcome)
}
