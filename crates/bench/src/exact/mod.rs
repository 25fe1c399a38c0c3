//! Counts instructions: runs the lab (two hosts and their guests, as network namespaces) in an
//! emulated machine whose clock counts instructions.
//!
//! ```no_run
//! use bench::exact::{Kernel, Programs, Workload, Wire, measure};
//! # fn main() -> bench::Result<()> {
//! let kernel = Kernel::open("target/guest-kernel".as_ref())?;
//! let contenders = ["weft-user-geneve".parse()?];
//! let programs = Programs {
//!     weft: "target/release/weft".into(),
//!     weft_bench: "target/release/weft-bench".into(),
//! };
//! let stop = bench::Stop::new();
//! let (rows, ended) =
//!     measure(&contenders, &kernel, &programs, Workload::FULL, Wire::Shared, 1, &stop);
//! ended?;
//! println!("{:.0} instructions for switching a message over TCP", rows[0].switching().tcp);
//! # Ok(()) }
//! ```
//!
//! All contenders that are weft share two emulated machines, one for each datapath: they need the
//! same modules and leave no state behind, and a boot takes longer than a count. Every other
//! contender runs in a separate machine.
//!
//! Each machine first counts the same traffic over one veth pair between two guests, without a
//! switch. *Switching* is the contender's count minus that of the veth pair. Each machine counts
//! the veth pair, because modules such as that of Open vSwitch make it costlier.
//!
//! Every emulated instruction takes one nanosecond, and caches are not emulated. So memory copies
//! weigh less than on hardware.

mod count;
mod gate;
mod image;
mod inside;
mod machine;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lab::Contender;
use crate::{Error, Result, Stop};

pub use count::{CountOptions, count};
pub use gate::{Baseline, ContenderCounts, Excess, Failed};
pub use inside::measure as measure_inside;
pub use machine::Kernel;
pub use wire::Wire;

/// How long a machine may take for each contender. It is long enough for a busy host.
const TIMEOUT_PER_CONTENDER: Duration = Duration::from_secs(600);

/// The programs that the emulated machine runs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `weft`, the program that is measured.
    pub weft: PathBuf,
    /// `weft-bench`, the program that measures.
    pub weft_bench: PathBuf,
}

/// How much traffic is exchanged for each count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Workload {
    /// Round trips before the measurement.
    pub warm_up: u32,
    /// Measured round trips, over TCP and over UDP.
    pub measured: u32,
    /// KiB of the measured part of a stream. The warm-up before it has the same size.
    pub stream_kib: u32,
}

impl Workload {
    /// The workload for published results.
    pub const FULL: Self = Self { warm_up: 500, measured: 2000, stream_kib: 32 << 10 };
    /// The workload for the regression gate and for quick comparisons.
    pub const SHORT: Self = Self { warm_up: 250, measured: 1000, stream_kib: 4 << 10 };
}

/// Instructions that the whole machine executes per operation. `tcp` and `udp` are half a round
/// trip: the median of 25 equal parts of all round trips. `stream` is a mean.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// A message of one byte over TCP, one way. It also acknowledges the message before it.
    pub tcp: f64,
    /// A datagram of 16 bytes, one way.
    pub udp: f64,
    /// A KiB of a TCP stream.
    pub stream: f64,
    /// A TCP connection with a request and a response of one byte each, from its first packet to
    /// its last: the median of 25 equal parts of the connections. Absent from results before the
    /// end of November 2026.
    #[serde(default)]
    pub connection: Option<f64>,
}

/// The counts of one contender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The contender.
    pub contender: Contender,
    /// The counts with the contender.
    pub total: Counts,
    /// The counts with one veth pair instead of the contender, in the same machine with the same
    /// modules.
    #[serde(rename = "wire")]
    pub veth_pair: Counts,
}

impl Row {
    /// The cost of switching: the total minus the cost of the veth pair.
    pub fn switching(&self) -> Counts {
        Counts {
            tcp: self.total.tcp - self.veth_pair.tcp,
            udp: self.total.udp - self.veth_pair.udp,
            stream: self.total.stream - self.veth_pair.stream,
            connection: self.total.connection.zip(self.veth_pair.connection).map(|(a, b)| a - b),
        }
    }
}

/// Boots a machine and measures `contenders` in it, one after another. `seed` determines the
/// machine's random numbers.
///
/// Returns the rows in the order of `contenders`. If rows are missing, also returns the reason: a
/// module or a program is missing, the machine does not end, traffic does not flow in it, or the
/// wire refuses a contender ([`Wire::refuses`]).
pub fn measure(
    contenders: &[Contender],
    kernel: &Kernel,
    programs: &Programs,
    workload: Workload,
    wire: Wire,
    seed: u32,
    stop: &Stop,
) -> (Vec<Row>, Result<()>) {
    let root = || {
        for contender in contenders {
            if let Some(why) = wire.refuses(*contender) {
                return Err(Error::Other(format!("{contender}: {why}")));
            }
        }
        let names: Vec<_> = contenders.iter().map(|contender| contender.id()).collect();
        let Workload { warm_up, measured, stream_kib } = workload;
        let arguments = format!("{warm_up} {measured} {stream_kib} {wire} {}", names.join(" "));
        image::root_file_system(contenders, wire, programs, kernel.directory(), &arguments)
    };
    let root = match root() {
        Ok(root) => root,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let timeout = TIMEOUT_PER_CONTENDER * contenders.len() as u32;
    let (printed, ended) = kernel.run(&root, seed, timeout, stop);
    let mut counts = printed.lines().filter_map(|line| serde_json::from_str(line).ok());
    let veth_pair: Option<Counts> = counts.next();
    let row = |(&contender, total)| veth_pair.map(|veth_pair| Row { contender, total, veth_pair });
    let rows: Vec<_> = contenders.iter().zip(counts).filter_map(row).collect();
    let ended = ended.and_then(|()| match rows.len() == contenders.len() {
        true => Ok(()),
        false => Err(Error::Other(format!(
            "expected {} rows of counts from the emulated machine, but it printed:\n{printed}",
            contenders.len() + 1
        ))),
    });
    (rows, ended)
}
