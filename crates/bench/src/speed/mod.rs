//! Small packets, transactions and new connections: weft beside Open vSwitch, kernel VXLAN and the Linux bridge.
//!
//! The bridge is measured first and last in every block, and all ratios are taken inside a block; what lies between is in random
//! order from the second block on.
//!
//! Packets are sent flat out at first, and then a little faster than they arrived: a switch that is buried in packets that it has to
//! drop may do less than it can. The better of both counts.

mod report;
pub mod scale;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use network::TunnelType;

pub use report::SpeedReport;

use crate::environment::Environment;
use crate::lab::{
    Attachment, Contender, DEFAULT_UPLINK_MTU, Lab, Profile, Session, attach_network, network_toml,
};
use crate::measure::{Snapshot, Usage};
use crate::scenario::attack::{Change, connection_lists, connections};
use crate::traffic::between::{Flow, Traffic};
use crate::traffic::blast::{Blast, Pace};
use crate::traffic::frames::{Frame, socket};
use crate::traffic::load::{Load, Pattern};
use crate::traffic::sink::Sink;
use crate::{Error, Result, Stop, demo};

/// How long another session may hold the machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Flows of the small packets.
const FLOWS: u64 = 8;
/// Connections of the transactions.
const CONNECTIONS: usize = 8;
/// The start of a series, which is not measured.
const WARM_UP: Duration = Duration::from_millis(300);
/// How much faster than they arrived packets are sent the second time.
const FASTER: f64 = 1.1;

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// As the demo has it.
    Plain(Contender),
    /// weft with access control lists that have to look at every bit of a packet's source: each connection needs a megaflow of its own.
    Lists(TunnelType),
}

impl Subject {
    fn attach(self, lab: &Lab<'_>, weft: &Path) -> Result<Attachment> {
        match self {
            Self::Plain(contender) => contender.attach(lab, weft),
            Self::Lists(tunnel) => {
                attach_network(lab, &(network_toml(lab, tunnel) + &connection_lists()), weft)
            }
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(contender) => contender.fmt(f),
            Self::Lists(tunnel) => write!(f, "weft user {tunnel}, lists"),
        }
    }
}

impl serde::Serialize for Subject {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What to measure, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program of the daemon.
    pub weft: PathBuf,
    /// Of each measurement.
    pub seconds: Duration,
    /// Repetitions.
    pub blocks: usize,
    /// Offloads of the underlay.
    pub profile: Profile,
    /// The commit that the program was built from.
    pub commit: Option<String>,
}

/// Packets a second.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub struct Packets {
    /// Those that arrived.
    pub received_pps: f64,
    /// The rate at which they were sent; what is more was lost.
    pub sent_pps: f64,
    /// Seconds of processors for a million packets that arrived, senders and receivers included.
    pub cpu_seconds_per_million: f64,
}

/// What a run of transactions has shown.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Transactions {
    /// All connections together.
    pub per_second: f64,
    /// Half of the transactions took no longer; all times are off by 3 % at most.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// One subject in one block.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Trial {
    /// Who.
    pub subject: Subject,
    /// Which repetition, from 0.
    pub block: usize,
    /// The bridge at the end of its block.
    pub again: bool,
    /// Frames of 60 bytes (64 with their check sequence) of eight flows.
    pub udp: Option<Packets>,
    /// One byte each way on eight connections.
    pub rr: Option<Transactions>,
    /// Every packet another connection.
    pub new: Option<Packets>,
    /// Why there is less than that.
    pub failure: Option<String>,
}

/// The base of all ratios.
const BASE: Subject = Subject::Plain(Contender::LinuxBridge);

/// Measures.
///
/// # Errors
/// [`Error::Missing`] when a privilege is missing or another session is running, [`Error::Interrupted`], or the lab cannot be built.
/// That somebody fails is no error: it is in the report.
pub fn run(options: &Options, stop: &Stop) -> Result<SpeedReport> {
    let session = Session::open(PATIENCE, stop)?;
    let environment = Environment::read(options.commit.clone());
    let mut subjects = vec![
        Subject::Plain(Contender::weft(TunnelType::Vxlan)),
        Subject::Plain(Contender::weft(TunnelType::Geneve)),
        Subject::Plain(Contender::weft(TunnelType::Stt)),
        Subject::Lists(TunnelType::Geneve),
        Subject::Plain(Contender::KERNEL_VXLAN),
    ];
    if Contender::OVS_VXLAN.unavailable(&options.weft).is_none() {
        subjects.push(Subject::Plain(Contender::OVS_VXLAN));
    }
    let mut trials = Vec::new();
    for block in 0..options.blocks {
        let mut order = subjects.clone();
        if block > 0 {
            demo::shuffle(&mut order);
        }
        let all = [(BASE, false)]
            .into_iter()
            .chain(order.into_iter().map(|subject| (subject, false)))
            .chain([(BASE, true)]);
        for (subject, again) in all {
            eprintln!("block {} of {}: {subject}", block + 1, options.blocks);
            let mut trial =
                Trial { subject, block, again, udp: None, rr: None, new: None, failure: None };
            match measure(&session, options, &mut trial) {
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => trial.failure = Some(error.to_string()),
                Ok(()) => {}
            }
            trials.push(trial);
        }
    }
    let seconds = options.seconds.as_secs_f64();
    Ok(SpeedReport { environment, profile: options.profile, seconds, trials })
}

fn measure(session: &Session, options: &Options, trial: &mut Trial) -> Result<()> {
    let stop = session.stop();
    let lab = Lab::build(session, options.profile, DEFAULT_UPLINK_MTU)?;
    let mut attachment = trial.subject.attach(&lab, &options.weft)?;
    let (from, to) = (lab.guest(0, 0), lab.guest(1, 0));
    let mut pinger = demo::first_ping(from, to, &mut attachment, stop)?;
    let address = to.ip4().into();
    pinger.run(3, stop)?;
    let load = Load::new(Pattern::TcpRr, 1, CONNECTIONS)?;
    trial.rr = Some(transactions(Flow { from, to, address, load }, options.seconds, stop)?);
    attachment.check()?;
    let udp = |port: u16| -> (Vec<u8>, Change) {
        let template = Frame::udp_template((from.mac(), from.ip4()), (to.mac(), to.ip4()));
        let change = move |number: u64, bytes: &mut [u8]| {
            Frame::of(bytes).set_ports(5000 + (number % FLOWS) as u16, port);
        };
        (template, Box::new(change))
    };
    trial.udp = Some(packets(&lab, options.seconds, udp)?);
    attachment.check()?;
    let mut seed = 0;
    trial.new = Some(packets(&lab, options.seconds, |port| {
        // Another part of all connections each time.
        seed += 1 << 22;
        connections(from, to, port, seed)
    })?);
    attachment.check()?;
    attachment.stop()
}

fn transactions(flow: Flow<'_>, duration: Duration, stop: &Stop) -> Result<Transactions> {
    let traffic = Traffic::start(&[flow], stop)?;
    stop.sleep(WARM_UP)?;
    traffic.begin_measuring();
    let begin = Instant::now();
    stop.sleep(duration)?;
    let seconds = begin.elapsed().as_secs_f64();
    let times = traffic.finish()?;
    let at = |part| times.percentile_us(part);
    let measured = at(0.5).zip(at(0.99)).zip(at(1.0)).map(|((p50_us, p99_us), max_us)| {
        Transactions { per_second: times.total() as f64 / seconds, p50_us, p99_us, max_us }
    });
    measured.ok_or_else(|| Error::Traffic("no transaction was completed".into()))
}

/// The most that arrives: see the module.
fn packets(
    lab: &Lab<'_>,
    seconds: Duration,
    mut make: impl FnMut(u16) -> (Vec<u8>, Change),
) -> Result<Packets> {
    let flat_out = series(lab, seconds / 2, &mut make, Pace::FlatOut)?;
    let pace = Pace::PerSecond(flat_out.received_pps * FASTER);
    let paced = series(lab, seconds / 2, &mut make, pace)?;
    Ok(if paced.received_pps > flat_out.received_pps { paced } else { flat_out })
}

fn series(
    lab: &Lab<'_>,
    duration: Duration,
    make: &mut impl FnMut(u16) -> (Vec<u8>, Change),
    pace: Pace,
) -> Result<Packets> {
    let (from, to) = (lab.guest(0, 0), lab.guest(1, 0));
    let sink = Sink::start(to, to.ip4().into())?;
    let (template, change) = make(sink.port());
    let blast = Blast::start(socket(from)?, template, change, pace, from.cpu())?;
    let look = || -> Result<_> {
        let at = (Instant::now(), blast.sent(), sink.received());
        Ok((at, Snapshot::now(lab.wire_counters()?, Vec::new())?))
    };
    lab.stop().sleep(WARM_UP)?;
    let (begin, before) = look()?;
    lab.stop().sleep(duration)?;
    let (end, after) = look()?;
    let seconds = (end.0 - begin.0).as_secs_f64();
    let received = end.2.saturating_sub(begin.2) as f64;
    let cpu_seconds = Usage::between(&before, &after).cpu_seconds;
    Ok(Packets {
        received_pps: received / seconds,
        sent_pps: end.1.saturating_sub(begin.1) as f64 / seconds,
        cpu_seconds_per_million: cpu_seconds * 1e6 / received.max(1.0),
    })
}
