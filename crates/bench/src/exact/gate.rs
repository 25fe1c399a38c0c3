//! The regression gate: compares the counts of weft's contenders with the committed baseline.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Counts, Row, Wire, Workload};
use crate::lab::{Contender, Datapath};
use crate::{Error, Result, file};

/// By which part of the baseline the cost of switching a message may grow, in the kernel datapath.
/// Switching is the total without the cost of the veth pair. That cost is most of the total, and
/// would hide a costlier switch.
const KERNEL_MESSAGE_TOLERANCE: f64 = 0.02;
/// The tolerance for a message in the user datapath. A wake-up of its threads costs thousands of
/// instructions.
const USER_MESSAGE_TOLERANCE: f64 = 0.015;
/// The tolerance for a KiB of a stream in the kernel datapath. Switching it takes few instructions.
/// Two builds whose messages cost about the same have differed by 6 %.
const KERNEL_STREAM_TOLERANCE: f64 = 0.12;
/// The tolerance for a KiB of a stream in the user datapath. There, such builds have differed by 13
/// %: when the threads sleep and wake decides how many frames they forward at once.
const USER_STREAM_TOLERANCE: f64 = 0.20;

/// The version of the schema. It grows when a reader of the earlier one would misunderstand a file.
/// Since 2, rows can be failures, and counts can be incomplete.
const SCHEMA: u32 = 2;

/// Counts, with the conditions that they depend on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Baseline {
    /// The version of the schema, 1 or 2. Files of version 1 do not contain it.
    #[serde(default = "first_schema")]
    pub schema: u32,
    /// The emulated kernel, by the name of Debian's package.
    pub kernel: String,
    /// How much traffic was exchanged for each count.
    #[serde(rename = "rounds")]
    pub workload: Workload,
    /// How the wire delivers packets.
    #[serde(default)]
    pub wire: Wire,
    /// False when the count ended before all contenders were counted.
    #[serde(default = "was_complete")]
    pub complete: bool,
    /// One for each contender.
    pub rows: Vec<ContenderCounts>,
}

const fn first_schema() -> u32 {
    1
}

/// Files of version 1 were written only when complete.
const fn was_complete() -> bool {
    true
}

/// The result for a contender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ContenderCounts {
    /// It was counted.
    Counted(Row),
    /// It could not be counted.
    Failed(Failed),
}

/// A contender that could not be counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// The contender.
    pub contender: Contender,
    /// The error message.
    pub failure: String,
}

impl ContenderCounts {
    /// The contender.
    pub const fn contender(&self) -> Contender {
        match self {
            Self::Counted(row) => row.contender,
            Self::Failed(failed) => failed.contender,
        }
    }
}

/// A count that exceeds its tolerance.
#[derive(Clone, PartialEq, Debug)]
pub struct Excess {
    /// The contender.
    pub contender: Contender,
    /// The counted operation, such as `switching a TCP message`.
    pub what: &'static str,
    /// Instructions of the baseline.
    pub before: f64,
    /// Instructions now.
    pub now: f64,
}

impl Baseline {
    /// A baseline without rows.
    pub(super) const fn begin(kernel: String, workload: Workload, wire: Wire) -> Self {
        Self { schema: SCHEMA, kernel, workload, wire, complete: false, rows: Vec::new() }
    }

    /// The contenders that were counted.
    pub fn counted(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter_map(|entry| match entry {
            ContenderCounts::Counted(row) => Some(row),
            ContenderCounts::Failed(_) => None,
        })
    }

    /// The contenders that could not be counted.
    pub fn failed(&self) -> impl Iterator<Item = &Failed> {
        self.rows.iter().filter_map(|entry| match entry {
            ContenderCounts::Counted(_) => None,
            ContenderCounts::Failed(failed) => Some(failed),
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, is not a baseline, or has a later version of the schema.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("read {}", path.display());
        let text = fs::read_to_string(path).map_err(Error::io(what()))?;
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| Error::io(what())(error))?;
        match value.get("schema").map_or(Some(1), serde_json::Value::as_u64) {
            Some(schema) if (1..=u64::from(SCHEMA)).contains(&schema) => {}
            _ => {
                let why = format!("another schema; this program reads 1 to {SCHEMA}");
                return Err(Error::Other(format!("{}: {why}", path.display())));
            }
        }
        serde_json::from_value(value).map_err(|error| Error::io(what())(error))
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

    /// Checks in advance whether [`Baseline::write`] can succeed. Later errors, such as a full
    /// disk, remain possible.
    ///
    /// # Errors
    /// The directory, or the existing file, cannot be written to.
    pub fn check_path(path: &Path) -> Result<()> {
        file::check(path).map_err(Error::io(format!("write {}", path.display())))
    }

    /// The counts of weft's contenders in `now` whose switching costs exceed this baseline: those
    /// of a message by more than 2 % (kernel datapath) or 1.5 % (user datapath), those of a stream
    /// by more than 12 % (kernel datapath) or 20 % (user datapath). A contender that could not be
    /// counted exceeds nothing.
    ///
    /// # Errors
    /// The two were measured under different conditions (kernel, workload or wire), or `now` has a
    /// contender that this baseline does not have. A newer package of the same kernel version is no
    /// different condition: Debian's security updates must not end all comparisons.
    pub fn excesses(&self, now: &Self) -> Result<Vec<Excess>> {
        let conditions = |it: &Self| (kernel_version(&it.kernel).to_owned(), it.workload, it.wire);
        if conditions(self) != conditions(now) {
            let how = |it: &Self| format!("{}, {:?} and wire {}", it.kernel, it.workload, it.wire);
            return Err(Error::Other(format!(
                "cannot compare: the baseline was measured with {}, this with {}; update it with \
                 `cargo xtask exact-gate --update`",
                how(self),
                how(now)
            )));
        }
        let mut excesses = Vec::new();
        for row in now.counted().filter(|row| row.contender.is_weft()) {
            let before = self.counted().find(|before| before.contender == row.contender);
            let before = before.ok_or_else(|| {
                Error::Other(format!(
                    "cannot compare: the baseline has no {}; update it with `cargo xtask \
                     exact-gate --update`",
                    row.contender
                ))
            })?;
            excesses.extend(row.excesses_over(before));
        }
        Ok(excesses)
    }

    /// Replaces counts by those of the same contender in `again`, where those are lower.
    pub fn lower_to(&mut self, again: &Self) {
        for row in &mut self.rows {
            let ContenderCounts::Counted(row) = row else { continue };
            let other = again.counted().find(|other| other.contender == row.contender);
            if let Some(other) = other {
                row.lower_to(other);
            }
        }
    }
}

/// The version in the name of Debian's kernel package, such as `linux-image-6.1.0` of
/// `linux-image-6.1.0-57-amd64`, without the number of the ABI and the architecture.
fn kernel_version(package: &str) -> &str {
    package.rsplitn(3, '-').last().unwrap_or(package)
}

impl Row {
    fn lower_to(&mut self, other: &Self) {
        let fields: [fn(&mut Counts) -> &mut f64; 3] =
            [|counts| &mut counts.tcp, |counts| &mut counts.udp, |counts| &mut counts.stream];
        let Self { mut total, mut veth_pair, .. } = *other;
        for field in fields {
            let (total, veth_pair) = (*field(&mut total), *field(&mut veth_pair));
            if total - veth_pair < *field(&mut self.total) - *field(&mut self.veth_pair) {
                (*field(&mut self.total), *field(&mut self.veth_pair)) = (total, veth_pair);
            }
        }
    }

    fn excesses_over(&self, before: &Self) -> Vec<Excess> {
        let (message, stream) = match self.contender.weft_datapath() {
            Some(Datapath::Kernel) => (KERNEL_MESSAGE_TOLERANCE, KERNEL_STREAM_TOLERANCE),
            _ => (USER_MESSAGE_TOLERANCE, USER_STREAM_TOLERANCE),
        };
        let (old, new) = (before.switching(), self.switching());
        [
            ("switching a TCP message", old.tcp, new.tcp, message),
            ("switching a UDP message", old.udp, new.udp, message),
            ("switching a KiB of a stream", old.stream, new.stream, stream),
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
            "{contender}: {what} takes {now:.0} instructions, {percent:.1} % more than {before:.0}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VETH_PAIR_STREAM: f64 = 10.0;

    fn baseline(tcp: f64, workload: Workload) -> Baseline {
        streaming(tcp, 100.0, workload)
    }

    /// A baseline whose switching of a TCP message costs `tcp`. The veth pair costs 100 times more.
    fn streaming(tcp: f64, stream: f64, workload: Workload) -> Baseline {
        let veth_pair =
            Counts { tcp: 100_000.0, udp: 10.0, stream: VETH_PAIR_STREAM, connection: None };
        let total = Counts { tcp: veth_pair.tcp + tcp, udp: 100.0, stream, connection: None };
        let contender = "weft-user-geneve".parse().unwrap();
        let rows = vec![ContenderCounts::Counted(Row { contender, total, veth_pair })];
        Baseline { complete: true, rows, ..Baseline::begin("k".into(), workload, Wire::Shared) }
    }

    /// `all`, whose only row gets the name `contender`.
    fn renamed(mut all: Baseline, contender: &str) -> Baseline {
        let row = all.counted().next().unwrap().clone();
        let contender = contender.parse().unwrap();
        all.rows = vec![ContenderCounts::Counted(Row { contender, ..row })];
        all
    }

    #[test]
    fn row_is_named_when_its_switching_costs_more_although_the_total_hardly_does() {
        for (contender, allowed, refused) in
            [("weft-user-geneve", 1014.0, 1020.0), ("weft-kernel-geneve", 1019.0, 1025.0)]
        {
            let with = |tcp| renamed(baseline(tcp, Workload::FULL), contender);
            let before = with(1000.0);
            assert!(before.excesses(&with(allowed)).unwrap().is_empty());
            assert!(before.excesses(&with(500.0)).unwrap().is_empty());
            let excesses = before.excesses(&with(refused)).unwrap();
            let [excess] = &excesses[..] else { panic!("{excesses:?}") };
            let text = excess.to_string();
            assert!(text.contains(": switching a TCP message takes 102"), "{text}");
            assert!(text.contains(" % more than 1000"), "{text}");
        }
    }

    #[test]
    fn stream_has_the_tolerance_of_its_datapath() {
        for (contender, allowed, refused) in
            [("weft-user-geneve", 119.0, 121.0), ("weft-kernel-geneve", 111.0, 113.0)]
        {
            let with = |switching| {
                renamed(streaming(1000.0, VETH_PAIR_STREAM + switching, Workload::FULL), contender)
            };
            let before = with(100.0);
            assert!(before.excesses(&with(allowed)).unwrap().is_empty());
            let excesses = before.excesses(&with(refused)).unwrap();
            assert!(
                matches!(excesses[..], [Excess { what: "switching a KiB of a stream", .. }]),
                "{excesses:?}"
            );
        }
    }

    /// `all`, with a failure in place of every row.
    fn failed(all: &Baseline) -> Baseline {
        let fail = |entry: &ContenderCounts| {
            let failure = "the emulated machine could not measure".to_owned();
            ContenderCounts::Failed(Failed { contender: entry.contender(), failure })
        };
        Baseline { rows: all.rows.iter().map(fail).collect(), ..all.clone() }
    }

    #[test]
    fn row_without_a_baseline_is_refused() {
        let now = baseline(1.0, Workload::FULL);
        let without = Baseline { rows: Vec::new(), ..now.clone() };
        for before in [without, failed(&now)] {
            let error = before.excesses(&now).unwrap_err().to_string();
            assert!(error.contains("has no weft user geneve"), "{error}");
        }
        assert_eq!(now.excesses(&failed(&now)).unwrap(), []);
    }

    #[test]
    fn counts_are_read_as_they_were_written_and_earlier_ones_too() {
        let directory = std::env::temp_dir().join(format!("weft-counts-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("exact.json");
        let mut counts = baseline(1000.0, Workload::FULL);
        counts.rows.extend(failed(&counts).rows);
        counts.complete = false;
        counts.write(&path).unwrap();
        assert_eq!(Baseline::read(&path).unwrap(), counts);
        let left: Vec<_> = fs::read_dir(&directory).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");

        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"schema\": 2", "\"schema\": 3")).unwrap();
        let error = Baseline::read(&path).unwrap_err().to_string();
        assert!(error.contains("this program reads 1 to 2"), "{error}");

        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/exact-baseline.json");
        let kept = Baseline::read(Path::new(kept)).unwrap();
        assert!(kept.complete && kept.counted().count() > 0 && kept.failed().count() == 0);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn kept_baseline_has_the_contenders_of_the_gate() {
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/exact-baseline.json");
        let kept = Baseline::read(Path::new(kept)).unwrap();
        let kept: Vec<_> = kept.counted().map(|row| row.contender.id()).collect();
        let all = Contender::all().into_iter().filter(|it| it.is_gated());
        assert!(all.map(Contender::id).all(|id| kept.contains(&id)), "{kept:?}");
    }

    #[test]
    fn baselines_are_compared_when_the_kernel_has_only_a_newer_package() {
        let of = |package: &str| Baseline {
            kernel: package.to_owned(),
            ..baseline(1000.0, Workload::FULL)
        };
        let before = of("linux-image-6.1.0-56-amd64");
        assert_eq!(before.excesses(&of("linux-image-6.1.0-57-amd64")).unwrap(), []);
        let error = before.excesses(&of("linux-image-6.12.0-57-amd64")).unwrap_err().to_string();
        assert!(error.contains("cannot compare"), "{error}");
    }

    #[test]
    fn baselines_are_not_compared_when_they_were_measured_otherwise() {
        let before = baseline(1000.0, Workload::FULL);
        let copied = Baseline { wire: Wire::Copies, ..before.clone() };
        for now in [baseline(1.0, Workload::SHORT), copied] {
            let error = before.excesses(&now).unwrap_err().to_string();
            assert!(error.contains("exact-gate --update"), "{error}");
        }
    }

    #[test]
    fn lower_counts_of_another_machine_replace_higher_ones() {
        let mut now = streaming(120.0, 90.0, Workload::SHORT);
        now.lower_to(&streaming(100.0, 95.0, Workload::SHORT));
        assert_eq!(now, streaming(100.0, 90.0, Workload::SHORT));
        let empty = Baseline::begin("k".into(), Workload::SHORT, Wire::Shared);
        now.lower_to(&empty);
        assert_eq!(now, streaming(100.0, 90.0, Workload::SHORT));
    }
}
