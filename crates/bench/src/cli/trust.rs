//! `weft-bench trust`: tests weft under hostile guests, reloads and kills.

use std::path::PathBuf;
use std::time::Duration;

use super::Failure;
use crate::Stop;
use crate::traffic::blast::Pace;
use crate::trust::{SoakChapter, TrustDatapath, TrustOptions, TrustScenario};

/// Try weft under hostile guests, reloads and kills, and judge each criterion.
///
/// Two hosts made of namespaces run weft with Geneve. Each scenario prints its measurements and,
/// for each criterion, `ok` or `FAIL`. Needs root.
///
/// upcall-flood: a guest sends nothing but new connections, each of which needs a megaflow.
/// port-scan: a guest scans a /16 behind a logical router.
/// tuple-space: a guest sends packets of which each needs another megaflow mask.
/// syn-flood: a guest sends nothing but SYNs of new connections through stateful ACLs.
/// arp-storm: a guest sends ARP requests for random addresses, and replies of random senders.
/// mac-flood: a guest sends from random MAC addresses, on a port that learns.
/// short-segments: a guest sends TCP super-packets of very short segments.
/// checksums: a guest requests checksums at random places of its frames.
///   In these eight, another guest is measured alone and during the attack, in turn. It must keep
///   0.999 of a steady UDP stream, 0.9 of its new connections and 0.8 of its TCP throughput. Its
///   median round-trip time may double. The attacker may take --attack-cpu of a processor.
/// reload: the network file is reloaded over and over under traffic.
/// kill: the daemon is killed over and over under traffic, and started again.
/// interruption: the daemon is reloaded, killed, stopped and started, and killed in a loop, under
///   traffic of many flows. With --old it is also replaced by the older program and back.
/// soak: ports, end points, programs, attacks and restarts, each for --seconds, and nothing may
///   leak. Not part of the default. --chapter runs one.
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:\n  weft-bench trust\n  \
                  weft-bench trust upcall-flood port-scan --seconds 5\n  \
                  weft-bench trust kill --kills 5 --flows 200000\n  \
                  weft-bench trust tuple-space --datapath user --attack-pps 1000\n  \
                  weft-bench trust interruption --flows 200000 --old ./weft-older\n  \
                  weft-bench trust soak --chapter ports --seconds 1800\n\n\
                  With --json every scenario is one line: {\"scenario\", \"datapath\", \
                  \"passed\", \"lines\"}.\n\
                  Exit codes: 0 every criterion is met, 1 one is not or a scenario failed, \
                  2 bad usage or missing rights."
)]
pub struct Args {
    /// Scenarios: upcall-flood, port-scan, tuple-space, syn-flood, arp-storm, mac-flood,
    /// short-segments, checksums, reload, kill, interruption, soak [default: all but soak]
    #[arg(value_name = "SCENARIO", value_parser = scenario)]
    scenarios: Vec<TrustScenario>,
    /// The datapath of both hosts
    #[arg(long, value_enum, value_name = "DATAPATH", default_value_t = TrustDatapath::Auto)]
    datapath: TrustDatapath,
    /// Seconds of each measurement or chapter, 0.5 to 1800
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// The share of a processor that the hostile guest's sender may take, in percent: 1 to 100
    #[arg(long, value_name = "PERCENT", default_value_t = 10,
          value_parser = clap::value_parser!(u8).range(1..=100))]
    attack_cpu: u8,
    /// Packets a second that the hostile guest sends, in place of --attack-cpu
    #[arg(long, value_name = "N", conflicts_with = "attack_cpu")]
    attack_pps: Option<u32>,
    /// Seconds of attack before the other guest is measured, 0.5 to 1800. The default is twice the
    /// idle timeout of megaflows, so that memory is judged when the first ones have expired
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = seconds)]
    warm_up: f64,
    /// Reloads of the network file
    #[arg(long, value_name = "N", default_value_t = 1000)]
    reloads: usize,
    /// Kills of the daemon
    #[arg(long, value_name = "N", default_value_t = 20)]
    kills: usize,
    /// UDP flows during kills and interruptions, each with a megaflow of its own: at most 1000000
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    flows: u32,
    /// An older program weft, for an upgrade and a downgrade in the scenario interruption
    #[arg(long, value_name = "PATH")]
    old: Option<PathBuf>,
    /// Of the interruptions, only the reloads
    #[arg(long)]
    only_reloads: bool,
    /// The only chapter of soak
    #[arg(long, value_enum, value_name = "CHAPTER")]
    chapter: Option<SoakChapter>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn scenario(name: &str) -> Result<TrustScenario, String> {
    let names =
        || TrustScenario::all().into_iter().map(TrustScenario::name).collect::<Vec<_>>().join(", ");
    TrustScenario::by_name(name)
        .ok_or_else(|| format!("no such scenario; expected one of {}", names()))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.5..=1800.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number from 0.5 to 1800".to_owned()),
    }
}

pub fn trust(args: &Args, weft: PathBuf) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let options = TrustOptions {
        weft,
        old: args.old.clone(),
        chapter: args.chapter,
        datapath: args.datapath,
        seconds: Duration::from_secs_f64(args.seconds),
        attack_pace: args.attack_pps.map_or_else(
            || Pace::CpuShare(f64::from(args.attack_cpu) / 100.0),
            |pps| Pace::PerSecond(pps.into()),
        ),
        warm_up: Duration::from_secs_f64(args.warm_up),
        reloads: args.reloads,
        kills: args.kills,
        flows: args.flows as usize,
        only_reloads: args.only_reloads,
    };
    let mut all = TrustScenario::all();
    all.retain(|scenario| *scenario != TrustScenario::Soak);
    let scenarios = if args.scenarios.is_empty() { &all } else { &args.scenarios };
    let mut failed = Vec::new();
    for scenario in scenarios {
        let report = scenario.run(&options, &stop)?;
        let passed = report.passed();
        if !passed {
            failed.push(scenario.name());
        }
        if args.json {
            let line = serde_json::json!({
                "scenario": scenario.name(), "datapath": args.datapath.name(), "passed": passed, "lines": report.lines,
            });
            println!("{line}");
        } else {
            println!("{scenario}: {}\n{report}", if passed { "passed" } else { "FAILED" });
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let failed = failed.join(", ");
    Err(Failure::work(format!("{failed}: a criterion is not met; see the lines with FAIL")))
}
