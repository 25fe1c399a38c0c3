//! One trial: starts a contender in a separate lab, tests it, measures it and stops it.

use std::path::Path;
use std::time::{Duration, Instant};

use super::policy::{self, PAIR_LIMIT, PINGS_OF_A_PAIR};
use super::report::{StreamReport, Trial};
use crate::lab::{
    Attachment, Contender, GUEST_DEVICE, Guest, Lab, OffloadFlags, Profile, Session, retransmitted,
};
use crate::measure::{Snapshot, Usage};
use crate::progress::Progress;
use crate::traffic::flow::{Flow, Traffic};
use crate::traffic::ping::{PingReport, Pinger, first_ping};
use crate::{Error, Result, Stop};

/// Pings between the first guests, for the round-trip time.
const PINGS: u32 = 20;
/// How long TCP may start up (slow start) before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(300);
/// A slower stream counts as stalled: no switch is that slow unless it loses packets constantly.
const STALLED_GBPS: f64 = 0.05;
/// The duration of the stream in the reverse direction, which is not measured.
const BACKWARD: Duration = Duration::from_millis(200);
/// How often a run checks the contender's processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a daemon's devices may exist after it has ended.
const GONE_LIMIT: Duration = Duration::from_secs(2);

/// The parameters that all trials of a profile share.
pub(super) struct Plan<'a> {
    pub(super) session: &'a Session,
    pub(super) profile: Profile,
    pub(super) uplink_mtu: u16,
    pub(super) weft: &'a Path,
    pub(super) seconds: Duration,
    pub(super) progress: &'a Progress,
}

impl Plan<'_> {
    /// Measures `trial.contender`. A failure of the contender becomes part of the trial, which
    /// keeps the figures measured before it. Returns the underlay's offload flags.
    ///
    /// # Errors
    /// [`Error::Interrupted`], or the lab itself cannot be built.
    pub(super) fn run(&self, trial: &mut Trial) -> Result<OffloadFlags> {
        let lab = Lab::build(self.session, self.profile, self.uplink_mtu)?;
        let offloads = lab.offloads().clone();
        match self.attempt(&lab, trial) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => trial.failure = Some(error.to_string()),
            Ok(()) => {}
        }
        Ok(offloads)
    }

    fn attempt(&self, lab: &Lab<'_>, trial: &mut Trial) -> Result<()> {
        let contender = trial.contender;
        self.step(contender, "start");
        let mut attachment = contender.attach(lab, self.weft)?;
        trial.guest_mtu = Some(attachment.guest_mtu());
        let result = self.measure(lab, &mut attachment, trial);
        match result {
            // If a process ended, that explains the failure better than the failed measurement
            // does.
            Err(error) if !error.is_interrupted() => {
                attachment.check_running()?;
                return Err(attachment.with_diagnostics(error, self.session.stop()));
            }
            other => other?,
        }
        self.step(contender, "stop");
        attachment.stop()?;
        if contender.is_weft() { check_devices_removed(lab) } else { Ok(()) }
    }

    fn measure(&self, lab: &Lab<'_>, attachment: &mut Attachment, trial: &mut Trial) -> Result<()> {
        let contender = trial.contender;
        let stop = self.session.stop();
        self.step(contender, "wait for the first ping");
        let (first, second) = (lab.guest(0, 0), lab.guest(1, 0));
        let mut ping4 = first_ping(first, second, attachment, stop)?;
        self.step(contender, "ping, all pairs of guests");
        ping_all_pairs(lab, contender, stop)?;
        trial.ping4 = Some(complete(ping4.run(PINGS, stop)?, first, second)?);
        let mut ping6 = first.run(|| Pinger::open(second.ip6().into()))??;
        trial.ping6 = Some(complete(ping6.run(PINGS, stop)?, first, second)?);
        self.step(contender, "router and access control lists");
        trial.policy = policy::exercise(lab, attachment, stop)?;
        if contender.is_weft() && trial.policy.is_none() {
            return Err(Error::Other(
                "weft runs without the router and the ACLs that the demo checks".into(),
            ));
        }

        self.step(contender, "TCP, 1 connection");
        let one = streams4(lab, 0, 1)?;
        trial.one = Some(self.flowing_stream(lab, attachment, &one, &mut trial.stalls)?);
        self.step(contender, "TCP, 8 connections over both pairs of guests");
        let eight = [streams4(lab, 0, 4)?, streams4(lab, 1, 4)?].concat();
        trial.eight = Some(self.flowing_stream(lab, attachment, &eight, &mut trial.stalls)?);
        self.step(contender, "TCP over IPv6, back");
        let (from, to) = (lab.guest(1, 1), lab.guest(0, 1));
        let back = [Flow::stream(from, to, to.ip6().into())?];
        self.stream(lab, attachment, &back, BACKWARD)?;
        // This is the last step, so that the megaflows' counters have been added to their ACL
        // entries.
        let streams = [&trial.one, &trial.eight].into_iter().flatten();
        let bytes = streams.map(|stream| stream.usage.connection_bytes.iter().sum::<u64>()).sum();
        trial
            .policy
            .as_mut()
            .map_or(Ok(()), |policy| policy::count(policy, bytes, attachment, stop))
    }

    /// Runs and measures the `flows`. After a stall they are measured once more, and the reason is
    /// added to `stalls`: the hypervisor may withhold the processors from a virtual machine for a
    /// second.
    fn flowing_stream(
        &self,
        lab: &Lab<'_>,
        attachment: &mut Attachment,
        flows: &[Flow<'_>],
        stalls: &mut Vec<String>,
    ) -> Result<StreamReport> {
        let first = self.stream(lab, attachment, flows, self.seconds)?;
        let Err(stalled) = not_stalled(&first) else { return Ok(first) };
        stalls.push(stalled.to_string());
        let second = self.stream(lab, attachment, flows, self.seconds)?;
        not_stalled(&second)?;
        Ok(second)
    }

    /// Runs the `flows` over TCP and measures them for `seconds`.
    fn stream(
        &self,
        lab: &Lab<'_>,
        attachment: &mut Attachment,
        flows: &[Flow<'_>],
        seconds: Duration,
    ) -> Result<StreamReport> {
        let stop = self.session.stop();
        let retransmits =
            || -> Result<u64> { lab.guests().iter().map(retransmitted).sum::<Result<u64>>() };
        let before = retransmits()?;
        let streams = Traffic::start(flows, stop)?;
        let mut run_for = |duration| {
            let end = Instant::now() + duration;
            while Instant::now() < end {
                stop.sleep(end.saturating_duration_since(Instant::now()).min(CHECK_INTERVAL))?;
                attachment.check_running()?;
                streams.check()?;
            }
            Snapshot::now(lab.wire_counters()?, streams.received())
        };
        let start = run_for(WARM_UP)?;
        let end = run_for(seconds)?;
        let total = streams.received();
        streams.finish()?;
        if let Some(idle) = total.iter().position(|&bytes| bytes == 0) {
            let all = total.len();
            let text =
                format!("TCP connection {} of {all} was established but moved nothing", idle + 1);
            return Err(Error::Other(text));
        }
        let retransmitted = retransmits()?.saturating_sub(before);
        Ok(StreamReport { usage: Usage::between(&start, &end), retransmitted })
    }

    fn step(&self, contender: Contender, what: &str) {
        self.progress.step(&format!("{} · {contender} · {what}", self.profile));
    }
}

/// TCP over IPv4 from guest `number` of the first host to that of the second.
fn streams4<'a>(lab: &'a Lab<'_>, number: usize, connections: usize) -> Result<Vec<Flow<'a>>> {
    let (from, to) = (lab.guest(0, number), lab.guest(1, number));
    Ok(vec![Flow::stream(from, to, to.ip4().into())?; connections])
}

/// Pings between every two guests that the contender connects, over IPv4 and IPv6.
fn ping_all_pairs(lab: &Lab<'_>, contender: Contender, stop: &Stop) -> Result<()> {
    for (index, from) in lab.guests().iter().enumerate() {
        for to in lab.guests()[index + 1..].iter().filter(|to| contender.joins(from, to)) {
            for address in [to.ip4().into(), to.ip6().into()] {
                let mut pinger = from.run(|| Pinger::open(address))??;
                pinger.wait_for_answer(PAIR_LIMIT, stop)?;
                complete(pinger.run(PINGS_OF_A_PAIR, stop)?, from, to)?;
            }
        }
    }
    Ok(())
}

fn complete(report: PingReport, from: &Guest, to: &Guest) -> Result<PingReport> {
    if report.is_complete() {
        return Ok(report);
    }
    let (from, to) = (from.name(), to.name());
    let PingReport { sent, received, .. } = report;
    Err(Error::Other(format!("{received} of {sent} pings from {from} to {to} were answered")))
}

/// Checks that a stream did not spend most of its time waiting for retransmission timers.
fn not_stalled(report: &StreamReport) -> Result<()> {
    let StreamReport { usage, retransmitted } = report;
    if usage.gbps >= STALLED_GBPS {
        return Ok(());
    }
    let (mbps, connections) = (usage.gbps * 1000.0, usage.connection_bytes.len());
    Err(Error::Other(format!(
        "TCP stalled: {mbps:.1} Mb/s over {connections} connection(s), {retransmitted} \
         retransmitted segments"
    )))
}

/// Checks that weft removed the guests' devices when it was stopped.
fn check_devices_removed(lab: &Lab<'_>) -> Result<()> {
    let waiter = lab.stop();
    for guest in lab.guests() {
        let what = format!("the removal of {GUEST_DEVICE} of {} by weft", guest.name());
        let netlink = guest.netns().netlink()?;
        waiter.wait_for(&what, GONE_LIMIT, || match netlink.link(GUEST_DEVICE) {
            Ok(_) => Ok(None),
            Err(error) if error.is_not_found() => Ok(Some(())),
            Err(error) => Err(error.into()),
        })?;
    }
    Ok(())
}
