//! Measures the packet rate with up to a million megaflows or end points.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use netdev::{IpNet, Route};
use network::TunnelType;
use serde_json::json;
use wire::MacAddr;

use crate::control::{ReplyForm, ask};
use crate::lab::{
    Attachment, Datapath, Lab, NO_CPU_LIMIT, UPLINK, attach_large, attach_with, network_toml,
};
use crate::measure::{Snapshot, Usage};
use crate::random::scramble;
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::connections::{connection_lists, connections};
use crate::traffic::frames::{Frame, socket};
use crate::traffic::ping::first_ping;
use crate::traffic::sink::Sink;
use crate::{Error, Result};

/// The part of the megaflows that must exist for a valid measurement.
const ENOUGH: f64 = 0.97;
/// The largest number of end points to which packets are sent, limited by the ports of a logical
/// switch.
const TARGETS: u64 = 30_000;
/// A number of megaflows of one port that the default limit of 200,000 always allows.
const PLENTY: u64 = 80_000;
/// How long packets are sent before the measurement, until all addresses are resolved.
const WARM_UP: Duration = Duration::from_millis(1500);
/// Without new megaflows for this long, no more are expected.
const STALLED: Duration = Duration::from_secs(5);
/// How often megaflows are counted. Each count interrupts all forwarding threads.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long the switch may take to load the network file or to create the megaflows. Two daemons
/// need a minute and a half to load a million hosts.
const LOADING: Duration = Duration::from_secs(300);
/// The network of the other hosts' addresses.
const FAR: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);
/// The largest number of ports of a logical switch.
const SWITCH: u64 = 30_000;

/// The quantity that is scaled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    /// Connections with a megaflow each.
    Megaflows,
    /// Remote hosts.
    Endpoints,
}

/// The result of a measurement.
pub(crate) struct ScaleMeasurement {
    /// Packets of 64 bytes per second.
    pub(crate) packets_per_second: f64,
    /// The cost of the measurement.
    pub(crate) usage: Usage,
    /// Seconds from the start of the daemons until all end points or megaflows exist.
    pub(crate) ready_seconds: f64,
}

/// Measures with weft and the given datapath, in a lab whose guests are not connected yet.
///
/// # Errors
/// The switch fails, or has fewer megaflows than required.
pub(crate) fn measure(
    lab: &Lab<'_>,
    weft: (Datapath, &Path),
    duration: Duration,
    axis: Axis,
    count: u64,
) -> Result<ScaleMeasurement> {
    match axis {
        Axis::Megaflows => megaflows(lab, weft, duration, count),
        Axis::Endpoints => endpoints(lab, weft, duration, count),
    }
}

/// Sends packets of `count` connections in a fixed order without locality.
fn megaflows(
    lab: &Lab<'_>,
    (datapath, weft): (Datapath, &Path),
    duration: Duration,
    count: u64,
) -> Result<ScaleMeasurement> {
    let begin = Instant::now();
    // The megaflows are those of one port, and their set-up is not what is measured.
    let text = NO_CPU_LIMIT.to_owned() + &network_toml(lab, TunnelType::Geneve);
    let text = text + &connection_lists();
    // A port may use half of the free megaflows, and some megaflows have other uses.
    let most = (2 * count + count / 5).to_string();
    // Creating the megaflows takes longer than the default idle timeout.
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
        return Err(Error::Other(format!("of {count} connections only {there} have a megaflow")));
    }
    let ready_seconds = begin.elapsed().as_secs_f64();
    let (packets_per_second, usage) = rate(lab, duration, || Ok(sink.received()))?;
    drop(blast);
    attachment.check_running()?;
    attachment.stop()?;
    Ok(ScaleMeasurement { packets_per_second, usage, ready_seconds })
}

/// Waits until the expected megaflows have existed for a while, or until no more are added. Returns
/// their number.
fn wait_for_megaflows(lab: &Lab<'_>, attachment: &mut Attachment, count: u64) -> Result<u64> {
    let begin = Instant::now();
    let (mut most, mut grown) = (0, begin);
    loop {
        lab.stop().sleep(CHECK_INTERVAL)?;
        attachment.check_running()?;
        let control = attachment.control(0).ok_or_else(|| Error::Other("no daemon".into()))?;
        let counters = ask(control, &json!({ "command": "show" }), ReplyForm::Line, |_| {})?;
        let there = counters["megaflows"]["megaflows"].as_u64().unwrap_or(0);
        // A few megaflows expire and are created again all the time.
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

/// Sends packets to `count` other hosts in random order. All of them are behind the second host.
fn endpoints(
    lab: &Lab<'_>,
    (datapath, weft): (Datapath, &Path),
    duration: Duration,
    count: u64,
) -> Result<ScaleMeasurement> {
    let [here, there] = lab.hosts() else {
        return Err(Error::Other("a lab has two hosts".into()));
    };
    let begin = Instant::now();
    let far = IpNet::new(FAR.into(), 10).map_err(|_| Error::Other("no such prefix".into()))?;
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
    attachment.check_running()?;
    attachment.stop()?;
    Ok(ScaleMeasurement { packets_per_second, usage, ready_seconds })
}

/// Waits until the guests reach each other. Loading a large network takes a while.
fn wait_until_loaded(lab: &Lab<'_>, attachment: &mut Attachment) -> Result<()> {
    let deadline = Instant::now() + LOADING;
    loop {
        match first_ping(lab.guest(0, 0), lab.guest(1, 0), attachment, lab.stop()) {
            Err(Error::Deadline { .. }) if Instant::now() < deadline => {}
            pinged => return pinged.map(drop),
        }
    }
}

/// The rate at which `count` grows per second, and the processor time that this costs.
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

/// The `network.toml` text of other hosts with one port each. The destinations are ports of the
/// guests' logical switch. Further hosts have ports on further switches, on which this host also
/// has a port.
fn far_hosts(lab: &Lab<'_>, count: u64) -> String {
    let here = lab.hosts().first().map(|host| host.name()).unwrap_or_default();
    let (mut hosts, mut text) = (String::new(), String::new());
    for number in 0..count {
        // Writing to a string cannot fail.
        if number > 0 && number.is_multiple_of(SWITCH) {
            let switch = number / SWITCH;
            let _ = write!(
                text,
                "\n[[logical_switch]]\nname = \"far{switch}\"\nvni = {}\n\n\
                 [[logical_switch.port]]\nname = \"here{switch}\"\nhost = \"{here}\"\n\
                 mac = \"02:fe:00:00:00:{switch:02x}\"\n\
                 device = {{ interface = \"none{switch}\" }}\n",
                5000 + switch
            );
        }
        let address = Ipv4Addr::from(u32::from(FAR) + 1 + number as u32);
        let _ = write!(
            hosts,
            "\n[[host]]\nname = \"far{number}\"\nuplink = \"{UPLINK}\"\n\
             underlay = [\"{address}\"]\n"
        );
        let _ = write!(
            text,
            "\n[[logical_switch.port]]\nname = \"port{number}\"\nhost = \"far{number}\"\n\
             mac = \"{}\"\ndevice = {{ tap = \"t\" }}\n",
            far_mac(number)
        );
    }
    // In the file, ports belong to the logical switch that precedes them.
    text + &hosts
}

fn far_mac(number: u64) -> MacAddr {
    let [.., a, b, c] = number.to_be_bytes();
    MacAddr([0x02, 0xff, 0, a, b, c])
}
