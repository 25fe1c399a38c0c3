//! `weft stop`: stops a daemon, and removes the pinned state of an earlier one.

use crate::control::replies::StopReply;
use crate::control::{DaemonSelector, Request, Stream, StreamEvent};
use crate::daemon::{attached, saved};
use crate::{Failure, privileges, stdio};
use anyhow::{Context, anyhow};
use datapath_bpf::{PurgeResult, purge};
use netdev::capability::Capability;
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// How long a daemon may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Stop a running switch, and report what keeps forwarding.
///
/// The programs of the kernel datapath keep forwarding cached flows without a daemon. Packets of
/// other flows are dropped as `no_daemon`. The next `weft run` in the same network namespace adopts
/// the cached flows and revalidates them. A switch with the user datapath stops completely. Cached
/// flows end too if only the daemon has its BPF file system mounted; the command then warns.
///
/// With --purge nothing remains: it removes programs, filters, pinned maps, the veth pairs of
/// guests, TAP devices that no virtual machine has open, and the file of saved connections. This
/// also cleans up after a killed daemon. Run it in the network namespace of the daemon.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// Remove all state, also that of a killed daemon
    #[arg(long)]
    purge: bool,
    /// Mount point of the BPF file system in which the daemon has pinned its state
    #[arg(long, value_name = "PATH", default_value = netdev::bpf_fs::DEFAULT_PATH)]
    bpf_fs: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  weft stop --host h1            the kernel keeps forwarding; weft run resumes
  weft stop --host h1 --purge    remove everything

Exit codes: 0 stopped, 1 no daemon replies or it does not stop, 2 bad usage or missing privileges.";

pub fn stop(args: &Args) -> Result<(), Failure> {
    if !args.purge {
        let stopping = stop_daemon(&args.target.path()?, false)?;
        return stdio::print(&describe(&stopping));
    }
    let needed = [Capability::CAP_NET_ADMIN, Capability::CAP_SYS_ADMIN];
    privileges::require("weft stop --purge", &needed).map_err(Failure::Input)?;
    // A killed daemon leaves a socket that refuses connections.
    let is_alive = |path: &PathBuf| UnixStream::connect(path).is_ok();
    let named = args.target.find()?;
    let controls = named.clone().map_or_else(saved::controls_with_files, |path| [path].into());
    let files = || controls.iter().filter(|control| saved::path(control).exists()).count();
    let before = files();
    let stopped = named.filter(is_alive);
    let stopped = stopped.map(|path| stop_daemon(&path, true)).transpose()?;
    let purged = purge(&args.bpf_fs).context("cannot remove the state of a daemon")?;
    for control in controls.iter().filter(|path| !is_alive(path)) {
        saved::remove_beside(control);
        attached::remove_empty(control);
    }
    let stopped =
        stopped.map_or_else(String::new, |it| format!("the switch of {} has stopped\n", it.host));
    stdio::print(&(stopped + &describe_purge(&purged, before.saturating_sub(files()))))
}

/// Asks the daemon at `path` to stop and waits until it exits.
fn stop_daemon(path: &PathBuf, purge: bool) -> Result<StopReply, Failure> {
    let (stopping, mut stream) = Stream::open(path, &Request::Stop { purge })?;
    match stream.next::<Value, Value>(STOP_TIMEOUT)? {
        StreamEvent::Closed => Ok(stopping),
        _ => {
            let limit = STOP_TIMEOUT.as_secs();
            Err(Failure::Runtime(anyhow!(
                "the daemon has not stopped within {limit} s: see its log, or kill its process"
            )))
        }
    }
}

fn describe(StopReply { host, pinned, lasting, megaflows }: &StopReply) -> String {
    let stopped = format!("the switch of {host} has stopped\n");
    let Some(pinned) = pinned else { return stopped + "nothing keeps forwarding\n" };
    let pinned = pinned.display();
    let forwarding = if *lasting {
        format!("the kernel keeps forwarding {megaflows} megaflows, pinned at {pinned}\n")
    } else {
        format!(
            "{megaflows} megaflows, pinned at {pinned}, may have ended with the daemon: process 1 \
             does not have their BPF file system mounted\n"
        )
    };
    stopped + &forwarding + "`weft run` adopts them, `weft stop --purge` removes them\n"
}

/// `files` is the number of removed files of saved connections.
fn describe_purge(purged: &PurgeResult, files: usize) -> String {
    let PurgeResult { programs, megaflows, devices } = purged;
    let mut removed = String::new();
    if *purged != PurgeResult::default() {
        removed += &format!(
            "removed programs at {programs} devices, {megaflows} megaflows, \
             {devices} guest devices\n"
        );
    }
    if files > 0 {
        removed += &format!("removed files of saved connections: {files}\n");
    }
    if removed.is_empty() { "nothing to remove\n".to_owned() } else { removed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_names_all_that_it_removed() {
        let nothing = PurgeResult::default();
        assert_eq!(describe_purge(&nothing, 0), "nothing to remove\n");
        assert_eq!(describe_purge(&nothing, 1), "removed files of saved connections: 1\n");
        let devices = PurgeResult { devices: 2, ..nothing };
        let text = describe_purge(&devices, 1);
        assert!(text.contains("2 guest devices\n") && text.contains("connections: 1"), "{text}");
    }

    #[test]
    fn describe_claims_that_flows_are_forwarded_only_when_that_is_known() {
        let pinned = Some("/sys/fs/bpf/weft/1".into());
        let text = |pinned, lasting| {
            describe(&StopReply { host: "h1".to_owned(), pinned, lasting, megaflows: 7 })
        };
        let lasting = text(pinned.clone(), true);
        let known = "the kernel keeps forwarding 7 megaflows, pinned at /sys/fs/bpf/weft/1\n";
        assert!(lasting.contains(known), "{lasting}");
        let possibly_ended = text(pinned, false);
        assert!(possibly_ended.contains("may have ended with the daemon"), "{possibly_ended}");
        assert!(!possibly_ended.contains("keeps"), "{possibly_ended}");
        assert_eq!(text(None, false), "the switch of h1 has stopped\nnothing keeps forwarding\n");
    }
}
