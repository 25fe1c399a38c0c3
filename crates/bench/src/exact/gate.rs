//! The regression gate: what a contender of ours costs now, against the committed baseline.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Counts, Rounds, Row, Wire};
use crate::lab::{Contender, Datapath};
use crate::{Error, Result};

/// What a message through a contender may cost more than its baseline, in parts of that.
const MESSAGE_TOLERANCE: f64 = 0.01;
/// What a stream may through programs in the kernel.
const KERNEL_STREAM_TOLERANCE: f64 = 0.03;
/// What a stream may through threads. Where they sleep and wake decides how many frames a train has, and a shift by one instruction anywhere
/// changes where: one build repeats to the digit, but two builds that do the same have differed by 14 %.
const USER_STREAM_TOLERANCE: f64 = 0.20;

/// Rows measured before, with what they depend on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Baseline {
    /// The kernel that was emulated, as Debian's package names it.
    pub kernel: String,
    /// How much was sent.
    pub rounds: Rounds,
    /// What the wire hands over.
    #[serde(default)]
    pub wire: Wire,
    /// One for each contender.
    pub rows: Vec<Row>,
}

/// A row that costs more than it may.
#[derive(Clone, PartialEq, Debug)]
pub struct Excess {
    /// Who.
    pub contender: Contender,
    /// Of what: `tcp`, `udp`, `stream`.
    pub what: &'static str,
    /// Instructions of the baseline.
    pub before: f64,
    /// Instructions now.
    pub now: f64,
}

impl Baseline {
    /// Reads a file.
    ///
    /// # Errors
    /// It is not there or is something else.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("read {}", path.display());
        let text = fs::read_to_string(path).map_err(Error::io(what()))?;
        serde_json::from_str(&text).map_err(|error| Error::io(what())(error))
    }

    /// Writes a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let what = || format!("write {}", path.display());
        let mut text = serde_json::to_string_pretty(self).map_err(|e| Error::io(what())(e))?;
        text.push('\n');
        fs::write(path, text).map_err(Error::io(what()))
    }

    /// What weft's rows of `now` cost more than those of this baseline: messages by more than 1 %, streams by more than 3 %
    /// with the kernel datapath and 20 % with the user datapath.
    ///
    /// # Errors
    /// The two were not measured alike: another kernel, other rounds, another wire; or `now` has a row that this has not.
    pub fn excesses(&self, now: &Self) -> Result<Vec<Excess>> {
        if (&self.kernel, self.rounds, self.wire) != (&now.kernel, now.rounds, now.wire) {
            let how = |it: &Self| format!("{}, {:?} and wire {}", it.kernel, it.rounds, it.wire);
            return Err(Error::Traffic(format!(
                "the baseline was measured with {}, this with {}: measure the baseline anew",
                how(self),
                how(now)
            )));
        }
        let mut excesses = Vec::new();
        for row in now.rows.iter().filter(|row| row.contender.is_weft()) {
            let before = self.rows.iter().find(|before| before.contender == row.contender);
            let before = before.ok_or_else(|| {
                Error::Traffic(format!("the baseline has no {}: measure it anew", row.contender))
            })?;
            excesses.extend(row.beyond(before.total));
        }
        Ok(excesses)
    }
}

impl Row {
    fn beyond(&self, before: Counts) -> Vec<Excess> {
        let now = self.total;
        let of_streams = match self.contender {
            Contender::Weft(Datapath::Kernel, _) => KERNEL_STREAM_TOLERANCE,
            _ => USER_STREAM_TOLERANCE,
        };
        [
            ("tcp", before.tcp, now.tcp, MESSAGE_TOLERANCE),
            ("udp", before.udp, now.udp, MESSAGE_TOLERANCE),
            ("stream", before.stream, now.stream, of_streams),
        ]
        .into_iter()
        .filter(|(_, before, now, tolerance)| *now > before * (1.0 + tolerance))
        .map(|(what, before, now, _)| Excess { contender: self.contender, what, before, now })
        .collect()
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { contender, what, before, now } = self;
        let percent = (now / before - 1.0) * 100.0;
        write!(
            f,
            "{contender}, {what}: {now:.0} instructions, {percent:.1} % more than {before:.0}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(tcp: f64, rounds: Rounds) -> Baseline {
        streaming(tcp, 100.0, rounds)
    }

    fn streaming(tcp: f64, stream: f64, rounds: Rounds) -> Baseline {
        let total = Counts { tcp, udp: 100.0, stream };
        let wire = Counts { tcp: 10.0, udp: 10.0, stream: 10.0 };
        let contender = "weft-user-geneve".parse().unwrap();
        let rows = vec![Row { contender, total, wire }];
        Baseline { kernel: "k".into(), rounds, wire: Wire::Shared, rows }
    }

    #[test]
    fn row_is_named_when_it_costs_more_than_one_percent_more() {
        let before = baseline(1000.0, Rounds::FULL);
        assert!(before.excesses(&baseline(1010.0, Rounds::FULL)).unwrap().is_empty());
        assert!(before.excesses(&baseline(500.0, Rounds::FULL)).unwrap().is_empty());
        let excesses = before.excesses(&baseline(1020.0, Rounds::FULL)).unwrap();
        let lines: Vec<_> = excesses.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["weft user geneve, tcp: 1020 instructions, 2.0 % more than 1000"]);
    }

    #[test]
    fn streams_have_room_for_how_trains_fall_in_threads() {
        for (contender, allowed, refused) in
            [("weft-user-geneve", 119.0, 121.0), ("weft-kernel-geneve", 102.0, 104.0)]
        {
            let with = |stream| {
                let mut all = streaming(1000.0, stream, Rounds::FULL);
                all.rows[0].contender = contender.parse().unwrap();
                all
            };
            let before = with(100.0);
            assert!(before.excesses(&with(allowed)).unwrap().is_empty());
            let excesses = before.excesses(&with(refused)).unwrap();
            assert!(matches!(excesses[..], [Excess { what: "stream", .. }]), "{excesses:?}");
        }
    }

    #[test]
    fn row_without_a_baseline_is_refused() {
        let now = baseline(1.0, Rounds::FULL);
        let mut before = now.clone();
        before.rows.clear();
        let error = before.excesses(&now).unwrap_err().to_string();
        assert!(error.contains("has no weft user geneve"), "{error}");
    }

    #[test]
    fn baselines_are_not_compared_when_they_were_measured_otherwise() {
        let before = baseline(1000.0, Rounds::FULL);
        let copied = Baseline { wire: Wire::Copies, ..before.clone() };
        for now in [baseline(1.0, Rounds::SHORT), copied] {
            let error = before.excesses(&now).unwrap_err().to_string();
            assert!(error.contains("measure the baseline anew"), "{error}");
        }
    }
}
