//! `results.json`: every run as it was measured. Reports, verdicts and comparisons are made of nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::claim::Finding;
use crate::environment::Environment;
use crate::lab::{Contender, OffloadFlags, Shape};
use crate::{Error, Result, file};

/// The version of the schema. It grows when a reader of the earlier one would misunderstand. Since 2 blocks are those of a whole study;
/// since 3 verdicts count the noise of the machine, and say of how many measurements they are made.
pub const SCHEMA: u32 = 3;

/// The first schema of which blocks are those of a whole study.
pub(crate) const INTERLEAVED: u32 = 2;

/// What all ratios are to: no tunnel.
pub const BASE: Contender = Contender::LinuxBridge;

/// A whole run of one or more studies.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine.
    pub environment: Environment,
    /// Whether it was a quick run.
    pub quick: bool,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// Repetitions that were asked for.
    pub blocks: usize,
    /// The studies, by name, in the order in which they were run.
    pub studies: Vec<String>,
    /// False when the run was ended before all was measured.
    pub complete: bool,
    /// Offload flags of the underlay with each profile, as the kernel states them.
    pub offloads: BTreeMap<String, OffloadFlags>,
    /// Who could not take part, and why.
    pub left_out: Vec<LeftOut>,
    /// What became of each claim, for whoever reads the file. Absent while a block is being measured; not read back, because
    /// it follows from the samples.
    #[serde(skip_deserializing, default)]
    pub verdicts: Vec<Finding>,
    /// What was measured, in the order in which it was.
    pub samples: Vec<Sample>,
}

/// A contender that could not take part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    /// Who.
    pub contender: Contender,
    /// Why.
    pub why: String,
}

/// One run of one scenario with one contender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The study, by name.
    pub study: String,
    /// The scenario, by name.
    pub scenario: String,
    /// Underlay and guests.
    pub shape: Shape,
    /// Who.
    pub contender: Contender,
    /// Which repetition, from 0.
    pub block: usize,
    /// The second run of the base in its block.
    pub again: bool,
    /// What was measured, unless it failed.
    pub figures: Option<Figures>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// What one run has shown. What does not apply is absent.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Length of the measurement, in seconds.
    pub seconds: f64,
    /// MTU of the guests, in bytes.
    pub guest_mtu: u16,
    /// Payload that was received, in 10^9 bits a second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gbps: Option<f64>,
    /// Transactions a second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub transactions_per_second: Option<f64>,
    /// Datagrams or frames a second that arrived.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets_per_second: Option<f64>,
    /// Those that were sent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sent_per_second: Option<f64>,
    /// Times of transactions that 50 %, 99 % and 99.9 % did not exceed, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_us: Option<[f64; 3]>,
    /// Requests over UDP that were not answered.
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
    /// Frames a second on the underlay, both directions; a super-packet counts as one.
    pub wire_frames_per_second: f64,
    /// TCP segments that were sent again.
    pub retransmitted: u64,
    /// Share of the machine's time that the hypervisor gave to somebody else, 0 to 1.
    pub cpu_steal: f64,
    /// What else a study looks at, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub more: BTreeMap<String, f64>,
}

impl Results {
    /// Reads a file.
    ///
    /// # Errors
    /// It is not there, is something else, or has another version of the schema.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("read {}", path.display());
        let text = fs::read_to_string(path).map_err(Error::io(what()))?;
        let no = |why: String| Error::Traffic(format!("{}: {why}", path.display()));
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

    /// Writes a file, as a whole or not at all.
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

/// How many blocks there are of each study.
pub(crate) fn blocks_by_study(samples: &[Sample]) -> BTreeMap<String, usize> {
    let mut blocks = BTreeMap::new();
    for sample in samples {
        let count = blocks.entry(sample.study.clone()).or_insert(0);
        *count = (*count).max(sample.block + 1);
    }
    blocks
}

/// Results of nothing so far.
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
