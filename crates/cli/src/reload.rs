//! `weft reload`: applies another network file to a running switch.

use crate::control::replies::{ReloadChanges, ReloadReply};
use crate::control::{DaemonSelector, Request, request};
use crate::{Failure, stdio};
use anyhow::Context;
use std::path::PathBuf;

/// Apply another network file, or a changed one, to a running switch.
///
/// The daemon checks the whole file first. If the file is invalid, or needs a restart (another
/// uplink, underlay address or host name), nothing changes. Unchanged ports and tunnels keep their
/// devices, sockets and counters and lose no packet. Every packet is forwarded by the old program
/// or by the new one, never by a mix. A port whose device, MTU or addresses change is recreated.
/// The counters of logical flows restart at 0.
///
/// Reload all hosts soon after each other. Append new ports to their switch, or give ports a `key`:
/// hosts identify a port by its number, which otherwise follows from its position in the file.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The network file
    network: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  weft reload network.toml --host h1
  weft reload network.toml --host h1 --json | jq .ports.removed

SIGHUP makes the daemon reload the network file that it was started with.

Exit codes: 0 the new network file is in force, 1 no daemon replies or the reload failed midway,
2 bad usage, or a file that is invalid or needs a restart; nothing has changed.";

pub fn reload(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    // The working directory of the daemon may differ.
    let network = std::path::absolute(&args.network)
        .with_context(|| format!("cannot read {}", args.network.display()))
        .map_err(Failure::Input)?;
    let reloaded: ReloadReply = request(&path, &Request::Reload { network })?;
    if args.json {
        return stdio::print_json(&reloaded);
    }
    stdio::print(&describe(&reloaded))
}

fn describe(reloaded: &ReloadReply) -> String {
    let ReloadReply { network, generation, ports, endpoints, datapaths } = reloaded;
    let line = |what: &str, changes: &ReloadChanges| format!("{what:<22}{}\n", changes.summary());
    format!("{} is in force as program generation {generation}\n", network.display())
        + &line("ports", ports)
        + &line("end points", endpoints)
        + &line("switches and routers", datapaths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describe_lists_what_a_reload_changed() {
        let reloaded = ReloadReply {
            network: "/etc/weft/network.toml".into(),
            generation: 2,
            ports: ReloadChanges {
                added: vec!["vm3".to_owned()],
                kept: 2,
                ..ReloadChanges::default()
            },
            ..ReloadReply::default()
        };
        let text = "\
/etc/weft/network.toml is in force as program generation 2
ports                 1 added (vm3), 2 kept
end points            0 kept
switches and routers  0 kept
";
        assert_eq!(describe(&reloaded), text);
    }
}
