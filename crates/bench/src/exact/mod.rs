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
//! let row = measure(contender, &kernel, &programs, Rounds::FULL, Wire::Shared, &stop)?;
//! println!("{:.0} instructions for switching a message over TCP", row.switching().tcp);
//! # Ok(()) }
//! ```
//!
//! Every contender is measured in a machine of its own, beside one veth pair between the same guests (the *wire*) with the same
//! modules loaded: some modules, such as Open vSwitch's, make the wire itself dearer. What *switching* costs is the
//! difference. On a [`Wire`] between two hosts of one machine a packet is one that its sender still has, unless it hands over copies. An emulated instruction is one nanosecond whatever it does, so copies weigh less here than on silicon.

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

pub use count::{Options, count};
pub use gate::{Baseline, Entry, Excess, Failed};
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

/// How much is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rounds {
    /// Round trips before any count.
    pub warm_up: u32,
    /// Round trips that count, over TCP and over UDP.
    pub measured: u32,
    /// KiB of a stream that count; as many go before.
    pub stream_kib: u32,
}

impl Rounds {
    /// For results that are kept.
    pub const FULL: Self = Self { warm_up: 500, measured: 2000, stream_kib: 32 << 10 };
    /// For a look.
    pub const SHORT: Self = Self { warm_up: 200, measured: 500, stream_kib: 8 << 10 };
}

/// Instructions, each on the whole way from one program to the other. Of messages it is the median of 25 equal parts of the round trips, of a
/// stream the mean.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// Of a message of one byte over TCP, one way, its acknowledgement included.
    pub tcp: f64,
    /// Of a datagram of 16 bytes, one way.
    pub udp: f64,
    /// Of a KiB of a TCP stream.
    pub stream: f64,
}

/// One contender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Who.
    pub contender: Contender,
    /// With the contender.
    pub total: Counts,
    /// With one veth pair in place of it, in the same machine with the same modules.
    pub wire: Counts,
}

impl Row {
    /// What the contender costs: the total less the wire.
    pub fn switching(&self) -> Counts {
        Counts {
            tcp: self.total.tcp - self.wire.tcp,
            udp: self.total.udp - self.wire.udp,
            stream: self.total.stream - self.wire.stream,
        }
    }
}

/// Boots a machine and measures `contender` in it.
///
/// # Errors
/// A module or a program is missing, the machine does not end, or traffic does not flow in it; [`Wire::refuses`].
pub fn measure(
    contender: Contender,
    kernel: &Kernel,
    programs: &Programs,
    rounds: Rounds,
    wire: Wire,
    stop: &Stop,
) -> Result<Row> {
    if let Some(why) = wire.refuses(contender) {
        return Err(Error::Traffic(format!("{contender}: {why}")));
    }
    let Rounds { warm_up, measured, stream_kib } = rounds;
    let arguments = format!("{} {warm_up} {measured} {stream_kib} {wire}", contender.id());
    let root = image::root_file_system(contender, wire, programs, kernel.directory(), &arguments)?;
    let printed = kernel.run(&root, stop)?;
    let counts: Vec<Counts> =
        printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    match counts[..] {
        [wire, total] => Ok(Row { contender, total, wire }),
        _ => Err(Error::Traffic(format!(
            "the emulated machine has printed something else:\n{printed}"
        ))),
    }
}
