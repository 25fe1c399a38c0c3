//! Reloads: the network file is reloaded many times under traffic. Unaffected flows must lose no
//! packet, and no resource may leak.

use std::fmt::Write;
use std::time::{Duration, Instant};

use network::TunnelType;

use super::report::{CriterionResult, TrustReport};
use super::test_bed::{Footprint, TestBed};
use crate::Result;
use crate::lab::{Guest, Lab, network_toml};
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::frames::{Frame, socket};
use crate::traffic::sink::Sink;

/// The rate of numbered packets in each direction.
const PPS: f64 = 5_000.0;
/// Reloads before the resource use is recorded for the first time.
const WARM_UP: usize = 50;
/// The allowed growth of memory after the warm-up.
const FLAT: f64 = 1.05;
/// How long the last packets may take to arrive.
const LAST: Duration = Duration::from_millis(500);
/// The offset of the UDP payload in a frame with its virtio-net header.
const PAYLOAD: usize = 10 + 14 + 20 + 8;

/// The network of this scenario. `other` adds a logical switch, a port and an ACL entry that do not
/// affect the guests.
pub fn network(lab: &Lab<'_>, other: bool) -> String {
    let mut text = network_toml(lab, TunnelType::Geneve);
    if other {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[logical_switch]]\nname = \"passing\"\nvni = 102\n\
             \n[[logical_switch.port]]\nname = \"passing1\"\nhost = \"h1\"\nmac = \"02:77:00:00:fd:01\"\n\
             addresses = [\"10.79.0.1/24\"]\ndevice = {{ tap = \"eth1\", netns = \"{}\" }}\n\
             \n[[acl]]\nswitch = \"passing\"\ndirection = \"from-port\"\npriority = 10\nmatch = 'udp'\naction = \"drop\"\n",
            lab.guest(0, 1).netns()
        );
    }
    text
}

/// Numbered packets in one direction.
struct Series {
    blast: Blast,
    sink: Sink,
}

impl Series {
    fn start(from: &Guest, to: &Guest) -> Result<Self> {
        let sink = Sink::start(to, to.ip4().into())?;
        let mut template = Frame::udp_template((from.mac(), from.ip4()), (to.mac(), to.ip4()));
        Frame::of(&mut template).set_ports(5000, sink.port());
        let number = |number: u64, bytes: &mut [u8]| {
            if let Some(place) = bytes.get_mut(PAYLOAD..PAYLOAD + 8) {
                place.copy_from_slice(&number.to_be_bytes());
            }
        };
        let blast =
            Blast::start(socket(from)?, template, number, Pace::PerSecond(PPS), from.cpu())?;
        Ok(Self { blast, sink })
    }
}

/// Reloads the daemon of the first host `times` times, with alternating network files.
///
/// # Errors
/// The test bed fails, or a reload is refused.
pub fn run(bed: &mut TestBed<'_>, times: usize) -> Result<TrustReport> {
    let lab = bed.lab();
    let texts = [network(lab, true), network(lab, false)];
    let series = [
        Series::start(lab.guest(0, 0), lab.guest(1, 0))?,
        Series::start(lab.guest(1, 0), lab.guest(0, 0))?,
    ];
    let links = || -> Result<usize> {
        let guests = lab.guests().iter().map(|guest| Ok(guest.netns().netlink()?.links()?.len()));
        let hosts = lab.hosts().iter().map(|host| Ok(host.netlink().links()?.len()));
        guests.chain(hosts).sum()
    };
    let mut longest = Duration::ZERO;
    let mut warm: Option<(Footprint, usize)> = None;
    let start = Instant::now();
    // An even number of turns ends with the initial network.
    for turn in 0..times.next_multiple_of(2) {
        if turn == WARM_UP.min(times / 2).next_multiple_of(2) {
            warm = Some((bed.footprint(0)?, links()?));
        }
        let begin = Instant::now();
        bed.check()?;
        bed.reload(0, &texts[turn % 2])?;
        longest = longest.max(begin.elapsed());
    }
    let took = start.elapsed();
    bed.pass(LAST)?;
    let after = (bed.footprint(0)?, links()?);
    let warm = warm.unwrap_or(after);

    let mut report = TrustReport::default();
    report.note(
        "reloads",
        format!(
            "{times} in {:.1} s, the longest {:.3} s",
            took.as_secs_f64(),
            longest.as_secs_f64()
        ),
    );
    for (series, direction) in series.into_iter().zip(["to the other host", "from the other host"])
    {
        let Series { blast, sink } = series;
        let refused = blast.refused();
        let sent = blast.finish();
        bed.pass(LAST)?;
        let received = sink.received();
        let lost = sent.saturating_sub(received);
        let text =
            format!("{lost} of {sent} packets ({refused} refused by the guest's own device)");
        report.judge(CriterionResult::of(lost == 0 && sent > 0), format!("lost {direction}"), text);
    }
    judge_rest(&mut report, warm, after);
    Ok(report)
}

/// Compares the resources at the end with those after the warm-up.
fn judge_rest(report: &mut TrustReport, warm: (Footprint, usize), after: (Footprint, usize)) {
    let grown = after.0.resident_bytes as f64 / warm.0.resident_bytes.max(1) as f64;
    let text = format!(
        "{} KiB, then {} KiB: {grown:.3} (at most {FLAT})",
        warm.0.resident_bytes / 1024,
        after.0.resident_bytes / 1024
    );
    report.judge(CriterionResult::of(grown <= FLAT), "memory", text);
    for (what, warm, after) in [
        ("descriptors", warm.0.descriptors, after.0.descriptors),
        ("threads", warm.0.threads, after.0.threads),
        ("links of hosts and guests", warm.1, after.1),
    ] {
        report.judge(CriterionResult::of(after <= warm), what, format!("{warm}, then {after}"));
    }
}
