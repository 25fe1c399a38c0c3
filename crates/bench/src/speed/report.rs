//! The measurements as a table, and beside what was aimed at.

use std::fmt;

use comfy_table::{Cell, CellAlignment, Table, TableComponent, presets};

use super::{BASE, Subject, Trial};
use crate::environment::Environment;
use crate::lab::{Contender, Profile};
use crate::measure::{median, ratio};

/// Small packets, and transactions, as a multiple of what Open vSwitch does.
const AIM_UDP: f64 = 2.0;
const AIM_RR: f64 = 1.5;
/// New connections a second.
const AIM_NEW: f64 = 150_000.0;
/// How far the base may be from itself.
const STEADY: f64 = 0.05;

/// All measurements, and where they were made.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SpeedReport {
    /// The machine and the moment.
    pub environment: Environment,
    /// Offloads of the underlay.
    #[serde(serialize_with = "as_text")]
    pub profile: Profile,
    /// Of each measurement.
    pub seconds: f64,
    /// In the order in which they were made.
    pub trials: Vec<Trial>,
}

fn as_text<S: serde::Serializer>(profile: &Profile, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(profile)
}

/// A figure of a trial.
type Figure = fn(&Trial) -> Option<f64>;
const UDP: Figure = |trial| Some(trial.udp?.received_pps);
const RR: Figure = |trial| Some(trial.rr?.per_second);
const NEW: Figure = |trial| Some(trial.new?.received_pps);

impl SpeedReport {
    /// True when everything could be measured.
    pub fn is_complete(&self) -> bool {
        self.trials.iter().all(|trial| trial.failure.is_none())
    }

    fn of(&self, subject: Subject, again: bool) -> impl Iterator<Item = &Trial> {
        self.trials.iter().filter(move |trial| trial.subject == subject && trial.again == again)
    }

    fn middle(&self, subject: Subject, again: bool, figure: Figure) -> Option<f64> {
        median(self.of(subject, again).filter_map(figure))
    }

    /// The median of the ratios inside blocks.
    fn ratio(
        &self,
        (subject, again): (Subject, bool),
        base: Subject,
        figure: Figure,
    ) -> Option<f64> {
        let ratios = self.of(subject, again).filter_map(|trial| {
            let base = self.of(base, false).find(|other| other.block == trial.block)?;
            ratio(figure(trial)?, figure(base)?)
        });
        median(ratios)
    }

    fn subjects(&self) -> Vec<(Subject, bool)> {
        let mut subjects = Vec::new();
        // In the order of the first block.
        for trial in &self.trials {
            if !subjects.contains(&(trial.subject, trial.again)) {
                subjects.push((trial.subject, trial.again));
            }
        }
        subjects
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header([
            "",
            "64 B\nk/s",
            "of\nbridge",
            "of\nOVS",
            "s CPU\nper M",
            "TCP_RR x8\nk/s",
            "of\nbridge",
            "of\nOVS",
            "p50/p99\nµs",
            "new conn.\nk/s",
            "of\nbridge",
            "of\nOVS",
        ]);
        table.set_style(TableComponent::HeaderLines, '─');
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for row in self.subjects() {
            table.add_row(self.row(row));
        }
        table
    }

    fn row(&self, (subject, again): (Subject, bool)) -> Vec<Cell> {
        let text = |value: Option<f64>, decimals: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
        };
        let again_text = if again { " (again)" } else { "" };
        let mut cells = vec![format!("{subject}{again_text}")];
        for figure in [UDP, RR, NEW] {
            cells.push(text(self.middle(subject, again, figure).map(|value| value / 1000.0), 1));
            cells.push(text(self.ratio((subject, again), BASE, figure), 2));
            cells.push(text(self.ratio((subject, again), OVS, figure), 2));
            if figure as usize == UDP as usize {
                let cost = |trial: &Trial| Some(trial.udp?.cpu_seconds_per_million);
                cells.push(text(self.middle(subject, again, cost), 2));
            }
            if figure as usize == RR as usize {
                let p50 = self.middle(subject, again, |trial| Some(trial.rr?.p50_us));
                let p99 = self.middle(subject, again, |trial| Some(trial.rr?.p99_us));
                cells.push(format!("{}/{}", text(p50, 0), text(p99, 0)));
            }
        }
        cells.into_iter().map(Cell::new).collect()
    }

    fn aims(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut say = |what: String, aim: String, got: Option<f64>, decimals: usize| {
            let got = got.map_or("nothing".to_owned(), |got| format!("{got:.decimals$}"));
            writeln!(f, "{what}: aim {aim}, got {got}")
        };
        for (subject, _) in self.subjects() {
            match subject {
                Subject::Plain(contender) if contender.is_weft() => {
                    let of_ovs = |figure| self.ratio((subject, false), OVS, figure);
                    say(format!("{subject}, 64 B of OVS"), format!("{AIM_UDP}"), of_ovs(UDP), 2)?;
                    say(
                        format!("{subject}, TCP_RR x8 of OVS"),
                        format!("{AIM_RR}"),
                        of_ovs(RR),
                        2,
                    )?;
                }
                Subject::Lists(_) => {
                    let got = self.middle(subject, false, NEW);
                    say(format!("{subject}, new connections/s"), format!("{AIM_NEW}"), got, 0)?;
                }
                Subject::Plain(_) => {}
            }
        }
        Ok(())
    }
}

const OVS: Subject = Subject::Plain(Contender::OVS_VXLAN);

impl fmt::Display for SpeedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.table())?;
        self.aims(f)?;
        for (name, figure) in [("64 B", UDP), ("TCP_RR x8", RR), ("new connections", NEW)] {
            let Some(itself) = self.ratio((BASE, true), BASE, figure) else { continue };
            let steady = (itself - 1.0).abs() <= STEADY;
            let verdict = if steady { "the machine held still" } else { "not converged" };
            writeln!(f, "The bridge against itself, {name}: {itself:.2}; {verdict}.")?;
        }
        for trial in &self.trials {
            if let Some(reason) = &trial.failure {
                writeln!(f, "{}, block {}: FAIL: {reason}", trial.subject, trial.block + 1)?;
            }
        }
        let blocks = self.of(BASE, false).count();
        writeln!(
            f,
            "{}; profile {}; {} s a measurement, {blocks} block(s).",
            self.environment, self.profile, self.seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speed::Packets;

    fn trial(subject: Subject, block: usize, again: bool, pps: f64) -> Trial {
        let udp = Some(Packets { received_pps: pps, ..Packets::default() });
        Trial { subject, block, again, udp, rr: None, new: None, failure: None }
    }

    #[test]
    fn ratios_are_taken_inside_blocks() {
        let weft = Subject::Plain(Contender::weft(network::TunnelType::Stt));
        let trials = vec![
            trial(BASE, 0, false, 100.0),
            trial(weft, 0, false, 50.0),
            trial(OVS, 0, false, 25.0),
            trial(BASE, 0, true, 100.0),
            trial(BASE, 1, false, 1000.0),
            trial(weft, 1, false, 500.0),
            trial(BASE, 1, true, 1000.0),
        ];
        let environment = Environment::read(None);
        let report = SpeedReport { environment, profile: Profile::Full, seconds: 1.0, trials };
        assert_eq!(report.ratio((weft, false), BASE, UDP), Some(0.5));
        assert_eq!(report.ratio((weft, false), OVS, UDP), Some(2.0));
        assert_eq!(report.ratio((weft, false), OVS, RR), None);
        let text = report.to_string();
        assert!(text.contains("weft user stt, 64 B of OVS: aim 2, got 2.00"), "{text}");
        assert!(text.contains("The bridge against itself, 64 B: 1.00; the machine held still."));
    }
}
