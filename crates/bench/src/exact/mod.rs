//! Instruction-exact measurement: the lab in an emulated machine whose clock counts instructions.
//!
//! ```no_run
//! use bench::exact::{Kernel, Programs, Rounds, Wire, measure};
//! # fn main() -> bench::Result<()> {
//! let kernel = Kernel::open("target/guest-kernel".as_ref())?;
//! let contender = "weft-user-geneve".parse()?;
//! let programs = Programs {
//!     weft: "target/release/weft".into(),
//!     weft_bench: "target/release/weft-bench".into(),
//! };
//! let stop = bench::Stop::new();
//! let row = measure(contender, &kernel, &programs, Rounds::FULL, Wire::Shared, 1, &stop)?;
//! println!("{:.0} instructions for switching a message over TCP", row.switching().tcp);
//! # Ok(()) }
//! ```
//!
//! Every contender runs in an emulated machine of its own. The same machine, with the same modules,
//! also measures one veth pair between the same guests, the *wire*: some modules, such as that of
//! Open vSwitch, make the wire costlier. *Switching* is the difference of the two.
//!
//! Every emulated instruction takes one nanosecond, so memory copies weigh less than on hardware.

mod count;
mod gate;
mod image;
mod inside;
mod machine;
mod wire;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::lab::Contender;
use crate::{Error, Result, Stop};

pub use count::{CountOptions, count};
pub use gate::{Baseline, ContenderCounts, Excess, Failed};
pub use inside::measure as measure_inside;
pub use machine::Kernel;
pub use wire::Wire;

/// The programs that the emulated machine runs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `weft`, which is measured.
    pub weft: PathBuf,
    /// `weft-bench`, which measures.
    pub weft_bench: PathBuf,
}

/// The number of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rounds {
    /// Round trips before the measurement.
    pub warm_up: u32,
    /// Measured round trips, over TCP and over UDP.
    pub measured: u32,
    /// Measured KiB of a stream, after a warm-up of the same size.
    pub stream_kib: u32,
}

impl Rounds {
    /// For kept results.
    pub const FULL: Self = Self { warm_up: 500, measured: 2000, stream_kib: 32 << 10 };
    /// For the regression gate and for quick comparisons.
    pub const SHORT: Self = Self { warm_up: 500, measured: 2000, stream_kib: 8 << 10 };
}

/// Instructions from one program to the other: for messages the median of 25 equal parts of the
/// round trips, for a stream the mean.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// A message of one byte over TCP, one way, including its acknowledgement.
    pub tcp: f64,
    /// A datagram of 16 bytes, one way.
    pub udp: f64,
    /// A KiB of a TCP stream.
    pub stream: f64,
}

/// The counts of one contender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The contender.
    pub contender: Contender,
    /// The counts with the contender.
    pub total: Counts,
    /// The counts with one veth pair in its place, in the same machine with the same modules.
    pub wire: Counts,
}

impl Row {
    /// The cost of switching: the total minus the wire.
    pub fn switching(&self) -> Counts {
        Counts {
            tcp: self.total.tcp - self.wire.tcp,
            udp: self.total.udp - self.wire.udp,
            stream: self.total.stream - self.wire.stream,
        }
    }
}

/// Boots a machine and measures `contender` in it. The machine's random numbers come from `seed`.
///
/// # Errors
/// A module or a program is missing, the machine does not end, traffic does not flow in it, or the
/// contender is not counted on this wire ([`Wire::refuses`]).
pub fn measure(
    contender: Contender,
    kernel: &Kernel,
    programs: &Programs,
    rounds: Rounds,
    wire: Wire,
    seed: u32,
    stop: &Stop,
) -> Result<Row> {
    if let Some(why) = wire.refuses(contender) {
        return Err(Error::Traffic(format!("{contender}: {why}")));
    }
    let Rounds { warm_up, measured, stream_kib } = rounds;
    let arguments = format!("{} {warm_up} {measured} {stream_kib} {wire}", contender.id());
    let root = image::root_file_system(contender, wire, programs, kernel.directory(), &arguments)?;
    let printed = kernel.run(&root, seed, stop)?;
    let counts: Vec<Counts> =
        printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    match counts[..] {
        [wire, total] => Ok(Row { contender, total, wire }),
        _ => Err(Error::Traffic(format!(
            "the emulated machine has printed something else:\n{printed}"
        ))),
    }
}
