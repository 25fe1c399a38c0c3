//! Soak: repeats one type of change for a long time under traffic. At the end, memory, descriptors,
//! threads, map entries, pins, devices and queueing disciplines must be the same as after the first
//! changes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use network::TunnelType;

use super::attack::Attack;
use super::report::{CriterionResult, TrustReport};
use super::test_bed::{TestBed, number};
use crate::lab::{Lab, network_toml};
use crate::process::run as run_program;
use crate::stats::median;
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::connections::{acl, connection_lists, connections};
use crate::traffic::frames::socket;
use crate::traffic::sink::Sink;
use crate::{Error, Result};

/// The share of a chapter's duration that is warm-up. Resources are compared after it.
const WARM_UP: f64 = 0.4;
/// The growth of memory that is allowed after the warm-up.
const FLAT: f64 = 1.05;
/// The packet rate of the traffic.
const PPS: f64 = 2_000.0;
/// The number of flows in the traffic.
const FLOWS: u64 = 1_000;
/// How long an attack lasts, and how long to wait afterwards until its megaflows have expired.
const ATTACK: Duration = Duration::from_secs(3);
const AFTER_ATTACK: Duration = Duration::from_secs(14);
/// The time between two changes.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a daemon may take to respond, and how long a tool may take to list resources.
const PATIENCE: Duration = Duration::from_secs(30);

/// The change that a chapter repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum SoakChapter {
    /// A logical switch with a port is added and removed.
    #[value(help = "a port comes and goes")]
    Ports,
    /// Up to 200 remote hosts are added and removed.
    #[value(help = "remote hosts do")]
    EndPoints,
    /// ACLs change, which invalidates every megaflow.
    #[value(help = "ACLs change")]
    Programs,
    /// A guest sends new connections, port scans and packets that need new masks.
    #[value(help = "a guest attacks")]
    Attacks,
    /// The daemon is killed, stopped and started.
    #[value(help = "the daemon restarts")]
    Restarts,
}

impl SoakChapter {
    /// All of them, in their order.
    pub const ALL: [Self; 5] =
        [Self::Ports, Self::EndPoints, Self::Programs, Self::Attacks, Self::Restarts];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::EndPoints => "end-points",
            Self::Programs => "programs",
            Self::Attacks => "attacks",
            Self::Restarts => "restarts",
        }
    }

    /// The network file before turn `turn`. The files repeat after ten turns.
    pub fn network(self, lab: &Lab<'_>, turn: usize) -> String {
        let mut text = network_toml(lab, TunnelType::Geneve) + &connection_lists();
        let turn = turn % 10;
        // Writing to a string cannot fail.
        match self {
            Self::Ports if turn % 2 == 1 => {
                let _ = write!(
                    text,
                    "\n[[logical_switch]]\nname = \"passing\"\nvni = 102\n\
                     \n[[logical_switch.port]]\nname = \"passing1\"\nhost = \"h1\"\n\
                     mac = \"02:77:00:00:fd:01\"\naddresses = [\"10.79.0.1/24\"]\n\
                     device = {{ tap = \"eth1\", netns = \"{}\" }}\n",
                    lab.guest(0, 1).netns()
                );
            }
            Self::EndPoints => {
                for host in 0..turn * 20 {
                    let _ = write!(
                        text,
                        "\n[[host]]\nname = \"remote{host}\"\nuplink = \"eth0\"\n\
                         underlay = [\"198.18.0.{number}\"]\n\
                         \n[[logical_switch.port]]\nname = \"remote{host}\"\n\
                         host = \"remote{host}\"\nmac = \"02:77:00:00:fc:{number:02x}\"\n\
                         device = {{ tap = \"tap0\" }}\n",
                        number = host + 1
                    );
                }
            }
            Self::Programs => text += &acl(700, &format!("udp.dst == {}", 10 + turn), "drop"),
            Self::Ports | Self::Attacks | Self::Restarts => {}
        }
        text
    }
}

/// The resources that the first host uses.
#[derive(Clone, PartialEq, Debug)]
struct Resources {
    resident_bytes: u64,
    /// The numbers of other resources, by name. They must not grow.
    counts: BTreeMap<String, u64>,
}

/// Repeats the changes of a chapter for `duration`.
///
/// # Errors
/// The test bed fails.
pub fn run(bed: &mut TestBed<'_>, chapter: SoakChapter, duration: Duration) -> Result<TrustReport> {
    let lab = bed.lab();
    let (near, far) = (lab.guest(0, 0), lab.guest(1, 0));
    let sink = Sink::start(far, far.ip4().into())?;
    let (template, mut change) = connections(near, far, sink.port(), 0);
    let change = move |number: u64, bytes: &mut [u8]| change(number % FLOWS, bytes);
    let traffic = Blast::start(socket(near)?, template, change, Pace::PerSecond(PPS), near.cpu())?;
    let (start, mut samples) = (Instant::now(), Vec::new());
    let mut turns = 0;
    while start.elapsed() < duration {
        // After ten turns the network is the same again, so all samples are taken in the same
        // state.
        for turn in 1..=10 {
            step(bed, chapter, turn)?;
            turns += 1;
            bed.pass(PAUSE)?;
        }
        samples.push((start.elapsed(), resources(bed)?));
    }
    let sent = traffic.finish();
    let mut report = TrustReport::default();
    let text = format!("{turns} in {:.0} s", start.elapsed().as_secs_f64());
    report.note("changes", text);
    report.note("traffic", format!("{} of {sent} packets received", sink.received()));
    judge(&mut report, &samples, duration);
    Ok(report)
}

/// Makes one change.
fn step(bed: &mut TestBed<'_>, chapter: SoakChapter, turn: usize) -> Result<()> {
    match chapter {
        SoakChapter::Ports | SoakChapter::EndPoints | SoakChapter::Programs => {
            let text = chapter.network(bed.lab(), turn);
            bed.reload(0, &text)?;
            let ends = bed.counters(0)?["endpoints"].as_array().map_or(0, Vec::len);
            if chapter == SoakChapter::EndPoints && ends <= turn % 10 * 20 {
                return Err(Error::Other(format!("only {ends} end points after a reload")));
            }
            Ok(())
        }
        SoakChapter::Attacks => {
            // Of ten turns, three have an attack, so that its megaflows have expired before the
            // sample.
            let attacks = [Attack::UpcallFlood, Attack::PortScan, Attack::TupleSpace];
            let turns = (3..).step_by(3).zip(attacks);
            let Some((_, attack)) = turns.take(3).find(|(at, _)| *at == turn) else {
                return if turn == 10 { bed.pass(AFTER_ATTACK) } else { Ok(()) };
            };
            let lab = bed.lab();
            let (bad, target) = (lab.guest(0, 1), lab.guest(1, 1));
            let (template, change) = attack.packets(bad, target);
            let blast = Blast::start(socket(bad)?, template, change, Pace::FlatOut, bad.cpu())?;
            bed.pass(ATTACK)?;
            blast.finish();
            Ok(())
        }
        SoakChapter::Restarts => {
            if turn.is_multiple_of(2) {
                bed.kill_daemon(0)?;
            } else {
                bed.stop_daemon(0)?;
            }
            bed.start_daemon(0)?;
            bed.wait_ready(0, PATIENCE).map(drop)
        }
    }
}

fn resources(bed: &TestBed<'_>) -> Result<Resources> {
    let lab = bed.lab();
    let footprint = bed.footprint(0)?;
    let counters = bed.counters(0)?;
    let mut counts = BTreeMap::new();
    let mut count = |name: &str, value: u64| {
        counts.insert(name.to_owned(), value);
    };
    count("descriptors", footprint.descriptors as u64);
    count("threads", footprint.threads as u64);
    count("devices of the host", lab.hosts()[0].netlink().links()?.len() as u64);
    for guest in lab.guests().iter().filter(|guest| guest.host() == 0) {
        let links = guest.netns().netlink()?.links()?.len() as u64;
        count(&format!("devices of {}", guest.name()), links);
    }
    let mut tc = Command::new("tc");
    tc.args(["qdisc", "show"]);
    let qdiscs = run_program("tc", lab.hosts()[0].netns().command(tc), PATIENCE, bed.stop_flag())?;
    count("queueing disciplines", qdiscs.lines().count() as u64);
    let cookie = lab.hosts()[0].netns().run_in(netdev::Netns::current_cookie)??;
    let pinned = pins(Path::new("/sys/fs/bpf/weft"), cookie)?;
    if pinned == 0 && !counters["maps"].as_array().is_none_or(Vec::is_empty) {
        return Err(Error::Other("programs run, but nothing is pinned".to_owned()));
    }
    count("pins", pinned);
    for map in counters["maps"].as_array().into_iter().flatten() {
        let name = map["name"].as_str().unwrap_or_default();
        count(&format!("entries of {name}"), number(map, "/entries"));
    }
    Ok(Resources { resident_bytes: footprint.resident_bytes, counts })
}

/// The number of files that are pinned for the network namespace with this cookie.
fn pins(folder: &Path, cookie: u64) -> Result<u64> {
    let (mut found, mut folders) = (0, vec![folder.join(cookie.to_string())]);
    while let Some(folder) = folders.pop() {
        // The directory is missing with a user datapath, which pins nothing.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let entry = entry.map_err(Error::io(format!("list {}", folder.display())))?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else {
                found += 1;
            }
        }
    }
    Ok(found)
}

/// Compares the first half of the samples after the warm-up with the second half.
fn judge(report: &mut TrustReport, samples: &[(Duration, Resources)], duration: Duration) {
    let warm = duration.mul_f64(WARM_UP);
    let late: Vec<_> =
        samples.iter().filter(|(at, _)| *at >= warm).map(|(_, found)| found).collect();
    let (first, last) = late.split_at(late.len() / 2);
    if first.is_empty() {
        let text = format!("{} after the warm-up: run longer", late.len());
        return report.judge(CriterionResult::Fail, "samples", text);
    }
    let resident =
        |some: &[&Resources]| median(some.iter().map(|it| it.resident_bytes as f64)).unwrap_or(0.0);
    let (before, after) = (resident(first), resident(last));
    let grown = after / before.max(1.0);
    let text = format!(
        "{:.0} KiB, then {:.0} KiB: {grown:.3} (at most {FLAT}), {} samples",
        before / 1024.0,
        after / 1024.0,
        samples.len()
    );
    report.judge(CriterionResult::of(grown <= FLAT), "memory", text);
    let most = |some: &[&Resources], name: &str| {
        some.iter().filter_map(|it| it.counts.get(name)).max().copied().unwrap_or(0)
    };
    let names: Vec<_> = last.iter().flat_map(|it| it.counts.keys()).collect();
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort();
    names.dedup();
    for name in names {
        let (before, after) = (most(first, name), most(last, name));
        // Packets that the guests' kernels send by themselves also have a few megaflows.
        let spare = if name.starts_with("entries") { before / 20 + 32 } else { 0 };
        let text = format!("{before}, then {after}");
        report.judge(CriterionResult::of(after <= before + spare), name.clone(), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(resident: [u64; 10], descriptors: [u64; 10]) -> Vec<(Duration, Resources)> {
        let both = resident.into_iter().zip(descriptors);
        let of = |(resident_bytes, count)| Resources {
            resident_bytes,
            counts: [("descriptors".to_owned(), count)].into(),
        };
        (1..).map(Duration::from_secs).zip(both.map(of)).collect()
    }

    fn passes(samples: &[(Duration, Resources)]) -> bool {
        let mut report = TrustReport::default();
        judge(&mut report, samples, Duration::from_secs(10));
        report.passed()
    }

    #[test]
    fn growth_after_the_warm_up_is_a_failure() {
        assert!(passes(&samples([1, 5, 9, 100, 100, 101, 100, 101, 100, 102], [7; 10])));
        let growing = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100];
        assert!(!passes(&samples(growing, [7; 10])));
        assert!(!passes(&samples([100; 10], growing)));
        assert!(!passes(&samples([100; 10], [7, 7, 7, 7, 7, 7, 7, 7, 7, 8])));
        assert!(!passes(&samples([100; 10], [7; 10])[..4]), "too few samples");
    }
}
