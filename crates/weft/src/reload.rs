//! `weft reload`: another network file for a running switch.

use crate::control::answers::{Changes, Reloaded};
use crate::control::{Request, Target, ask};
use crate::{Failure, text};
use anyhow::Context;
use std::path::PathBuf;

/// Have a running switch go over to another network file, or to the same one with changes.
///
/// The file is checked as a whole; if anything is wrong with it, or cannot be changed while the switch runs (its uplink, its
/// underlay address, its name), nothing changes. What stays as it is loses no packet: ports and tunnels keep their devices, sockets
/// and counters, and no packet meets half of one program and half of the other. A port whose device, MTU or addresses
/// have changed is made anew. The counters of logical flows begin again.
///
/// All hosts are to get the new file soon after each other. Add ports behind the others of their switch: ports are known between
/// hosts by their place in the file.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weft reload network.toml --host h1\n  weft reload network.toml --host h1 --json | jq .ports.removed\n\nSIGHUP has the daemon read the file again that it was started with.\n\nExit codes: 0 the new network is in use, 1 it failed while working or no daemon answers, 2 the file is wrong or cannot be applied to a running switch; nothing has changed."
)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The network file
    network: PathBuf,
}

pub fn reload(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    // The daemon has a directory of its own.
    let network = std::path::absolute(&args.network)
        .with_context(|| format!("cannot read {}", args.network.display()))
        .map_err(Failure::Input)?;
    let reloaded: Reloaded = ask(&path, &Request::Reload { network })?;
    if args.json {
        return text::print(&format!("{}\n", serde_json::to_string_pretty(&reloaded)?));
    }
    text::print(&describe(&reloaded))
}

fn describe(reloaded: &Reloaded) -> String {
    let Reloaded { network, generation, ports, endpoints, datapaths } = reloaded;
    let line = |what: &str, changes: &Changes| format!("{what:<22}{}\n", changes.summary());
    format!("{} is in use, as generation {generation} of the program\n", network.display())
        + &line("ports", ports)
        + &line("end points", endpoints)
        + &line("switches and routers", datapaths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_tells_what_has_changed() {
        let reloaded = Reloaded {
            network: "/etc/weft/network.toml".into(),
            generation: 2,
            ports: Changes { added: vec!["vm3".to_owned()], kept: 2, ..Changes::default() },
            ..Reloaded::default()
        };
        let text = "\
/etc/weft/network.toml is in use, as generation 2 of the program
ports                 1 added (vm3), 2 kept
end points            0 kept
switches and routers  0 kept
";
        assert_eq!(describe(&reloaded), text);
    }
}
