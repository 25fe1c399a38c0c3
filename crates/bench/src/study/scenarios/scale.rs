//! What many megaflows and many end points cost: the packet rate with 100,000 of them beside that with one.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use netdev::{IpNet, Route};
use network::TunnelType;
use serde_json::json;
use wire::MacAddr;

use crate::control::{Answer, ask};
use crate::lab::{Attachment, Datapath, Lab, UPLINK, attach_large, attach_with, network_toml};
use crate::measure::{Snapshot, Usage};
use crate::random::scramble;
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::connections::{connection_lists, connections};
use crate::traffic::frames::{Frame, socket};
use crate::traffic::ping::first_ping;
use crate::traffic::sink::Sink;
use crate::{Error, Result};

/// How many of so many megaflows there have to be for a measurement to mean something.
const ENOUGH: f64 = 0.97;
/// End points that packets go to: as many as a logical switch has ports, nearly.
const TARGETS: u64 = 30_000;
/// As many megaflows as a port may have of the default of 200,000 without any doubt.
const PLENTY: u64 = 80_000;
/// How long packets are sent before any counts: addresses of end points are found out, megaflows are there to stay.
const WARM_UP: Duration = Duration::from_millis(1500);
/// When no more megaflows have come for so long, no more will.
const STALLED: Duration = Duration::from_secs(5);
/// How often megaflows are counted, which every thread that forwards has to answer.
const LOOK: Duration = Duration::from_millis(250);
/// How long a switch may take to load a file with so many hosts, or to set up so many megaflows: of a million hosts two at once take
/// a minute and a half.
const LOADING: Duration = Duration::from_secs(300);
/// The addresses of the other hosts.
const FAR: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);
/// The ports of a logical switch, at most.
const SWITCH: u64 = 30_000;

/// Of what there are many or one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    /// Connections, of which each needs a megaflow of its own.
    Megaflows,
    /// Remote hosts.
    Endpoints,
}

/// What was seen with so many megaflows or end points.
pub(crate) struct Seen {
    /// Packets of 64 bytes.
    pub(crate) packets_per_second: f64,
    /// Of the measurement alone.
    pub(crate) usage: Usage,
    /// From the start of the daemons until all end points or megaflows are there.
    pub(crate) ready_seconds: f64,
}

/// Measures in a lab whose guests nothing joins yet, with a datapath of a program.
///
/// # Errors
/// The switch fails, or has not so many megaflows.
pub(crate) fn measure(
    lab: &Lab<'_>,
    weft: (Datapath, &Path),
    duration: Duration,
    axis: Axis,
    count: u64,
) -> Result<Seen> {
    match axis {
        Axis::Megaflows => megaflows(lab, weft, duration, count),
        Axis::Endpoints => endpoints(lab, weft, duration, count),
    }
}

/// Packets of `count` connections in turn, none of which has anything in common with the one before.
fn megaflows(
    lab: &Lab<'_>,
    (datapath, weft): (Datapath, &Path),
    duration: Duration,
    count: u64,
) -> Result<Seen> {
    let begin = Instant::now();
    let text = network_toml(lab, TunnelType::Geneve) + &connection_lists();
    // A port may have as many as are still free besides; and some are there for other reasons.
    let most = (2 * count + count / 5).to_string();
    // Setting them all up takes longer than one may otherwise be idle.
    let idle = LOADING.as_secs().to_string();
    let many: &[&str] = &["--megaflows", &most, "--idle", &idle];
    let options = if count > PLENTY { many } else { &[] };
    let mut attachment = attach_with(lab, datapath, &text, weft, options)?;
    let (from, to) = (lab.guest(0, 0), lab.guest(1, 0));
    wait_until_loaded(lab, &mut attachment)?;
    let sink = Sink::start(to, to.ip4().into())?;
    let (template, mut change) = connections(from, to, sink.port(), 0);
    let in_turn = move |number: u64, bytes: &mut [u8]| change(number % count, bytes);
    let blast = Blast::start(socket(from)?, template, in_turn, Pace::FlatOut, from.cpu())?;
    let there = wait_for_megaflows(lab, &mut attachment, count)?;
    if (there as f64) < count as f64 * ENOUGH {
        return Err(Error::Traffic(format!("of {count} connections only {there} have a megaflow")));
    }
    let ready_seconds = begin.elapsed().as_secs_f64();
    let (packets_per_second, usage) = rate(lab, duration, || Ok(sink.received()))?;
    drop(blast);
    attachment.check()?;
    attachment.stop()?;
    Ok(Seen { packets_per_second, usage, ready_seconds })
}

/// Waits until as many megaflows as are expected have been there for a while, or no more come; returns how many there are.
fn wait_for_megaflows(lab: &Lab<'_>, attachment: &mut Attachment, count: u64) -> Result<u64> {
    let begin = Instant::now();
    let (mut most, mut grown) = (0, begin);
    loop {
        lab.stop().sleep(LOOK)?;
        attachment.check()?;
        let control = attachment.control(0).ok_or_else(|| Error::Traffic("no daemon".into()))?;
        let counters = ask(control, &json!({ "command": "show" }), Answer::Line, |_| {})?;
        let there = counters["megaflows"]["megaflows"].as_u64().unwrap_or(0);
        // Some always come and go.
        if there > most + most / 1000 {
            (most, grown) = (there, Instant::now());
        }
        let enough = there as f64 >= count as f64 * ENOUGH;
        let settled = if enough { WARM_UP } else { STALLED };
        if grown.elapsed() >= settled || begin.elapsed() >= LOADING {
            return Ok(there);
        }
    }
}

/// Packets to some of `count` other hosts in random order. All of them are behind the one that is there.
fn endpoints(
    lab: &Lab<'_>,
    (datapath, weft): (Datapath, &Path),
    duration: Duration,
    count: u64,
) -> Result<Seen> {
    let [here, there] = lab.hosts() else {
        return Err(Error::Traffic("a lab has two hosts".into()));
    };
    let begin = Instant::now();
    let far = IpNet::new(FAR.into(), 10).map_err(|_| Error::Traffic("no such prefix".into()))?;
    here.netlink().add_route(&Route::via(far, there.underlay4().into()))?;
    let (own, far) = (network_toml(lab, TunnelType::Geneve), far_hosts(lab, count));
    let mut attachment = attach_large(lab, datapath, [&own, &far], weft, &[])?;
    let (from, to) = (lab.guest(0, 0), lab.guest(1, 0));
    wait_until_loaded(lab, &mut attachment)?;
    let ready_seconds = begin.elapsed().as_secs_f64();
    let template = Frame::udp_template((from.mac(), from.ip4()), (to.mac(), to.ip4()));
    let (from_mac, targets) = (from.mac(), count.min(TARGETS));
    let change = move |number: u64, bytes: &mut [u8]| {
        Frame::of(bytes).set_macs(from_mac, far_mac(scramble(number) % targets));
    };
    let blast = Blast::start(socket(from)?, template, change, Pace::FlatOut, from.cpu())?;
    lab.stop().sleep(WARM_UP)?;
    let (packets_per_second, usage) = rate(lab, duration, || Ok(lab.wire_counters()?.frames))?;
    drop(blast);
    attachment.check()?;
    attachment.stop()?;
    Ok(Seen { packets_per_second, usage, ready_seconds })
}

/// Until the guests reach each other: the file of a large network takes a while to load, and so does memory for very many megaflows.
fn wait_until_loaded(lab: &Lab<'_>, attachment: &mut Attachment) -> Result<()> {
    let deadline = Instant::now() + LOADING;
    loop {
        match first_ping(lab.guest(0, 0), lab.guest(1, 0), attachment, lab.stop()) {
            Err(Error::Deadline { .. }) if Instant::now() < deadline => {}
            pinged => return pinged.map(drop),
        }
    }
}

/// What `count` grows by in a second, and what that takes.
fn rate(
    lab: &Lab<'_>,
    duration: Duration,
    count: impl Fn() -> Result<u64>,
) -> Result<(f64, Usage)> {
    let snapshot = || Snapshot::now(lab.wire_counters()?, Vec::new());
    let (start, before) = (snapshot()?, count()?);
    lab.stop().sleep(duration)?;
    let usage = Usage::between(&start, &snapshot()?);
    Ok((count()?.saturating_sub(before) as f64 / usage.seconds, usage))
}

/// Other hosts with a port each: those that packets go to on the logical switch of the guests, and the others on more switches, on
/// which this host has a port, too.
fn far_hosts(lab: &Lab<'_>, count: u64) -> String {
    let here = lab.hosts().first().map(|host| host.name()).unwrap_or_default();
    let (mut hosts, mut text) = (String::new(), String::new());
    for number in 0..count {
        // Writing to a string cannot fail.
        if number > 0 && number.is_multiple_of(SWITCH) {
            let switch = number / SWITCH;
            let _ = write!(
                text,
                "\n[[logical_switch]]\nname = \"far{switch}\"\nvni = {}\n\n[[logical_switch.port]]\nname = \"here{switch}\"\n\
                 host = \"{here}\"\nmac = \"02:fe:00:00:00:{switch:02x}\"\ndevice = {{ interface = \"none{switch}\" }}\n",
                5000 + switch
            );
        }
        let address = Ipv4Addr::from(u32::from(FAR) + 1 + number as u32);
        let _ = write!(
            hosts,
            "\n[[host]]\nname = \"far{number}\"\nuplink = \"{UPLINK}\"\nunderlay = [\"{address}\"]\n"
        );
        let _ = write!(
            text,
            "\n[[logical_switch.port]]\nname = \"port{number}\"\nhost = \"far{number}\"\nmac = \"{}\"\ndevice = {{ tap = \"t\" }}\n",
            far_mac(number)
        );
    }
    // The ports belong to the switch in front of them.
    text + &hosts
}

fn far_mac(number: u64) -> MacAddr {
    let [.., a, b, c] = number.to_be_bytes();
    MacAddr([0x02, 0xff, 0, a, b, c])
}
