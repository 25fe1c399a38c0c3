//! `results.json`: every measurement of a run. Reports, verdicts and comparisons use only this
//! file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::claim::Finding;
use crate::environment::Environment;
use crate::lab::{Contender, OffloadFlags, Shape};
use crate::{Error, Result, file};

/// The version of the schema. It is increased when a reader of the earlier version would
/// misunderstand a file. Since 2, a block repeats the whole study. Since 3, verdicts include the
/// noise of the machine and their number of measurements.
pub const SCHEMA: u32 = 3;

/// The first version of the schema in which a block repeats the whole study.
pub(crate) const INTERLEAVED: u32 = 2;

/// The base of all ratios: no tunnel.
pub const BASE: Contender = Contender::LinuxBridge;

/// A run of one or more studies.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The version, [`SCHEMA`].
    pub schema: u32,
    /// The machine.
    pub environment: Environment,
    /// Whether it was a quick run.
    pub quick: bool,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// The requested repetitions.
    pub blocks: usize,
    /// The studies by name, in the order of the run.
    pub studies: Vec<String>,
    /// False when the run ended before everything was measured.
    pub complete: bool,
    /// Offload flags of the underlay for each profile, read from the kernel.
    pub offloads: BTreeMap<String, OffloadFlags>,
    /// The unavailable contenders.
    pub left_out: Vec<UnavailableContender>,
    /// The verdict on each claim. Empty while a block is being measured. Not read from files,
    /// because verdicts are computed from the samples.
    #[serde(skip_deserializing, default)]
    pub verdicts: Vec<Finding>,
    /// The measurements, in the order in which they were made.
    pub samples: Vec<Sample>,
}

/// An unavailable contender.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnavailableContender {
    /// The contender.
    pub contender: Contender,
    /// Why it is unavailable.
    pub why: String,
}

/// One measurement: a scenario with a contender in a block.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The study, by name.
    pub study: String,
    /// The scenario, by name.
    pub scenario: String,
    /// The shape of the underlay and the guests.
    pub shape: Shape,
    /// The contender.
    pub contender: Contender,
    /// The number of the repetition, from 0.
    pub block: usize,
    /// True for the second run of the base in its block.
    pub again: bool,
    /// The figures, unless it failed.
    pub figures: Option<Figures>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// The figures of a measurement. Those that do not apply are absent.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Length of the measurement, in seconds.
    pub seconds: f64,
    /// MTU of the guests, in bytes.
    pub guest_mtu: u16,
    /// Received payload, in 10^9 bits per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gbps: Option<f64>,
    /// Transactions per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub transactions_per_second: Option<f64>,
    /// Datagrams or frames per second that arrived.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets_per_second: Option<f64>,
    /// Datagrams per second that were sent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sent_per_second: Option<f64>,
    /// The times that 50 %, 99 % and 99.9 % of the transactions did not exceed, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_us: Option<[f64; 3]>,
    /// Requests over UDP without a response.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost: Option<u64>,
    /// Busy share of the machine's processors, 0 to 1.
    pub cpu_busy: f64,
    /// Busy processor seconds for 10^9 payload bits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_seconds_per_gbit: Option<f64>,
    /// Busy processor microseconds for a transaction or packet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_us_each: Option<f64>,
    /// Frames per second on the underlay, both directions; a super-packet counts as one.
    pub wire_frames_per_second: f64,
    /// Retransmitted TCP segments.
    pub retransmitted: u64,
    /// Share of the machine's time that the hypervisor took (steal), 0 to 1.
    pub cpu_steal: f64,
    /// Further figures of a study, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub more: BTreeMap<String, f64>,
}

impl Results {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, has no results, or has another version of the schema.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("read {}", path.display());
        let text = fs::read_to_string(path).map_err(Error::io(what()))?;
        let no = |why: String| Error::Other(format!("{}: {why}", path.display()));
        let value: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| no(format!("not the results of weft bench: {error}")))?;
        match value.get("schema").and_then(serde_json::Value::as_u64) {
            Some(schema) if (1..=u64::from(SCHEMA)).contains(&schema) => {}
            Some(schema) => {
                return Err(no(format!("schema {schema}; this program reads 1 to {SCHEMA}")));
            }
            None => return Err(no("not the results of weft bench: it has no schema".into())),
        }
        serde_json::from_value(value).map_err(|error| no(error.to_string()))
    }

    /// Writes a file completely or not at all.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn write(&self, path: &Path) -> Result<()> {
        let what = || format!("write {}", path.display());
        let mut text = serde_json::to_string_pretty(self).map_err(|e| Error::io(what())(e))?;
        text.push('\n');
        file::write(path, &text).map_err(Error::io(what()))
    }
}

/// The number of blocks of each study.
pub(crate) fn blocks_by_study(samples: &[Sample]) -> BTreeMap<String, usize> {
    let mut blocks = BTreeMap::new();
    for sample in samples {
        let count = blocks.entry(sample.study.clone()).or_insert(0);
        *count = (*count).max(sample.block + 1);
    }
    blocks
}

/// Results without samples.
#[cfg(test)]
pub(crate) fn empty(blocks: usize) -> Results {
    Results {
        schema: SCHEMA,
        environment: Environment::read(None),
        quick: true,
        seconds: 1.0,
        blocks,
        studies: Vec::new(),
        complete: false,
        offloads: BTreeMap::new(),
        left_out: Vec::new(),
        verdicts: Vec::new(),
        samples: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_refused_with_what_they_lack() {
        let directory = std::env::temp_dir().join(format!("weft-results-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("a.json");
        for (text, why) in [
            ("", "not the results"),
            ("{}", "has no schema"),
            ("{\"schema\": 999}", "schema 999; this program reads 1 to 3"),
            ("{\"schema\": 2}", "missing field"),
        ] {
            fs::write(&path, text).unwrap();
            let error = Results::read(&path).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
