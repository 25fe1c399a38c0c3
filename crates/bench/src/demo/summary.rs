//! The result of the demo in three sentences: which tunnels carried traffic, how fast the kernel
//! datapath is, and whether the machine was steady enough to say so.

use network::TunnelType;

use super::report::{ProfileReport, Row, one_gbps};
use crate::lab::{Contender, Datapath};
use crate::stats::{median, ratio};

/// The relative difference between two measurements of the bridge, up to which a machine is steady.
const STEADY: f64 = 0.05;

/// The three sentences, one per line.
pub(super) fn sentences(report: &ProfileReport) -> String {
    [tunnels(&report.rows), speed(report), steadiness(report)].join("\n")
}

/// Which tunnels carried traffic. A tunnel counts if no datapath that supports it failed.
fn tunnels(rows: &[Row]) -> String {
    let measured = |tunnel: TunnelType| {
        let is_of = move |row: &&Row| matches!(row.contender, Contender::Weft(_, t) if t == tunnel);
        rows.iter().filter(is_of).filter(|row| !row.left_out)
    };
    let passed = |tunnel: &TunnelType| {
        measured(*tunnel).next().is_some() && measured(*tunnel).all(|row| row.failure.is_none())
    };
    let (passed, rest): (Vec<TunnelType>, Vec<_>) = TunnelType::ALL.into_iter().partition(passed);
    let failed: Vec<String> = rest
        .into_iter()
        .flat_map(measured)
        .filter(|row| row.failure.is_some())
        .map(|row| row.contender.to_string())
        .collect();
    let names = and(&passed.iter().map(TunnelType::to_string).collect::<Vec<_>>());
    match (passed.is_empty(), failed.is_empty()) {
        (true, true) => "No tunnel of weft was measured.".to_owned(),
        (false, true) => format!("Traffic passed through {names}."),
        (true, false) => format!("Traffic FAILED through {}.", and(&failed)),
        (false, false) => {
            format!("Traffic passed through {names}; it FAILED through {}.", and(&failed))
        }
    }
}

/// How the kernel datapath compares with the Linux bridge and with kernel VXLAN, for one TCP
/// stream.
fn speed(report: &ProfileReport) -> String {
    let mut rates: Vec<(f64, TunnelType)> = report
        .rows
        .iter()
        .filter_map(|row| match row.contender {
            Contender::Weft(Datapath::Kernel, tunnel) => Some((row.one_ratio?, tunnel)),
            _ => None,
        })
        .collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some((low, slowest)), Some((high, fastest))) = (rates.first(), rates.last()) else {
        return "The kernel datapath was not measured.".to_owned();
    };
    let range = match rates.len() {
        1 => format!("{low:.2} ({slowest})"),
        _ => format!("{low:.2} ({slowest}) to {high:.2} ({fastest})"),
    };
    let beside = beside_kernel_vxlan(report).map_or_else(
        || "kernel VXLAN was not measured beside its VXLAN".to_owned(),
        |ratio| format!("its VXLAN carried {ratio:.2} of what kernel VXLAN carried"),
    );
    format!(
        "With one TCP stream, the kernel datapath carried {range} of what the Linux bridge \
         carried; {beside}."
    )
}

/// The rate of VXLAN in weft's kernel datapath, divided by that of kernel VXLAN in the same block:
/// the median of all blocks.
fn beside_kernel_vxlan(report: &ProfileReport) -> Option<f64> {
    const OURS: Contender = Contender::Weft(Datapath::Kernel, TunnelType::Vxlan);
    let of = |contender| report.trials.iter().filter(move |trial| trial.contender == contender);
    median(of(OURS).filter_map(|ours| {
        let theirs = of(Contender::KERNEL_VXLAN).find(|theirs| theirs.block == ours.block)?;
        ratio(one_gbps(ours)?, one_gbps(theirs)?)
    }))
}

/// How much the two measurements of the bridge differed, which limits the precision of all ratios.
fn steadiness(report: &ProfileReport) -> String {
    let Some(noise) = report.noise else {
        return "The bridge was not measured twice, so the noise of the machine is unknown."
            .to_owned();
    };
    let percent = noise.distance() * 100.0;
    if noise.distance() <= STEADY {
        format!(
            "The machine was steady: two measurements of the Linux bridge differed by at most \
             {percent:.0} %."
        )
    } else {
        format!(
            "The machine was NOT steady: two measurements of the Linux bridge differed by up to \
             {percent:.0} %, and smaller differences mean nothing."
        )
    }
}

/// `a, b and c`.
fn and(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Trial;
    use super::super::report::tests::{STT, report, trial};
    use super::*;

    fn kernel(tunnel: TunnelType) -> Contender {
        Contender::Weft(Datapath::Kernel, tunnel)
    }

    fn lines(trials: Vec<Trial>) -> Vec<String> {
        sentences(&report(trials).profiles[0]).lines().map(str::to_owned).collect()
    }

    #[test]
    fn result_is_told_in_three_sentences_when_everything_passed() {
        let lines = lines(vec![
            trial(Contender::LinuxBridge, 0, false, 40.0),
            trial(kernel(TunnelType::Vxlan), 0, false, 44.0),
            trial(kernel(TunnelType::Vlan), 0, false, 38.0),
            trial(STT, 0, false, 10.0),
            trial(Contender::KERNEL_VXLAN, 0, false, 40.0),
            trial(Contender::LinuxBridge, 0, true, 40.0),
        ]);
        assert_eq!(
            lines,
            [
                "Traffic passed through vxlan, stt and vlan.",
                "With one TCP stream, the kernel datapath carried 0.95 (vlan) to 1.10 (vxlan) of \
                 what the Linux bridge carried; its VXLAN carried 1.10 of what kernel VXLAN \
                 carried.",
                "The machine was steady: two measurements of the Linux bridge differed by at most \
                 0 %.",
            ]
        );
    }

    #[test]
    fn contender_is_named_when_a_tunnel_failed() {
        let failure = Some("no answer".to_owned());
        let bridge = || trial(Contender::LinuxBridge, 0, false, 40.0);
        let failed = Trial { failure, ..trial(STT, 0, false, 1.0) };
        let both = lines(vec![bridge(), trial(kernel(TunnelType::Gre), 0, false, 40.0), failed]);
        assert_eq!(both[0], "Traffic passed through gre; it FAILED through weft user stt.");
        assert!(both[1].contains("carried 1.00 (gre) of what"), "{both:?}");
        assert!(both[2].contains("the noise of the machine is unknown"), "{both:?}");
        let none = lines(vec![bridge()]);
        assert_eq!(
            none[..2],
            ["No tunnel of weft was measured.", "The kernel datapath was not measured."]
        );
    }

    #[test]
    fn sentence_says_so_when_the_machine_was_not_steady() {
        let lines = lines(vec![
            trial(Contender::LinuxBridge, 0, false, 40.0),
            trial(Contender::LinuxBridge, 0, true, 20.0),
        ]);
        assert!(lines[2].contains("NOT steady") && lines[2].contains("up to 50 %"), "{lines:?}");
    }
}
