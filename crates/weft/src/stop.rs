//! `weft stop`: ends a daemon, and removes what one has left.

use crate::control::answers::Stopping;
use crate::control::{Next, Request, Stream, Target};
use crate::{Failure, rights, text};
use anyhow::{Context, anyhow};
use datapath_bpf::{Purged, purge};
use netdev::capability::Capability;
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the end of a daemon is waited for.
const END_LIMIT: Duration = Duration::from_secs(20);

/// End a running switch, and say what stays.
///
/// In the kernel's datapath, what is cached goes on forwarding without a daemon: no packet of a cached flow is lost. Packets of other flows
/// are dropped as `no_daemon`. The next `weft run` in the same network namespace takes it over, decided anew by its network file. A switch
/// of the user's datapath ends as a whole.
///
/// With --purge nothing stays: programs, filters, what is pinned, the pairs that were made for guests, TAPs that no machine has open. That works as well when the
/// daemon was killed; run it in the network namespace in which the daemon was.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weft stop --host h1            and `weft run` goes on where it was\n  weft stop --host h1 --purge    nothing is left\n\nExit codes: 0 it has ended, 1 it failed while working or no daemon answers, 2 missing rights."
)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Leave nothing behind, not even of a daemon that was killed
    #[arg(long)]
    purge: bool,
    /// Where the daemon has pinned it
    #[arg(long, value_name = "PATH", default_value = netdev::bpf_fs::USUAL)]
    bpf_fs: PathBuf,
}

pub fn stop(args: &Args) -> Result<(), Failure> {
    if !args.purge {
        let stopping = end(&args.target.path()?, false)?;
        return text::print(&describe(&stopping));
    }
    let needed = [Capability::CAP_NET_ADMIN, Capability::CAP_SYS_ADMIN];
    rights::check("weft stop --purge", &needed).map_err(Failure::Input)?;
    // One that was killed leaves a socket at which nobody listens.
    let path = args.target.find()?.filter(|path| UnixStream::connect(path).is_ok());
    let ended = path.map(|path| end(&path, true)).transpose()?;
    let purged = purge(&args.bpf_fs).context("cannot remove what a daemon has left")?;
    let stopped =
        ended.map_or_else(String::new, |it| format!("the switch of {} has ended\n", it.host));
    text::print(&(stopped + &removed(&purged)))
}

/// Asks the daemon at `path` to end, and waits until it has.
fn end(path: &PathBuf, purge: bool) -> Result<Stopping, Failure> {
    let (stopping, mut stream) = Stream::open(path, &Request::Stop { purge })?;
    match stream.next::<Value, Value>(END_LIMIT)? {
        Next::HungUp => Ok(stopping),
        _ => {
            let limit = END_LIMIT.as_secs();
            Err(Failure::Work(anyhow!("the daemon has not ended within {limit} seconds")))
        }
    }
}

fn describe(Stopping { host, pinned, megaflows }: &Stopping) -> String {
    let ended = format!("the switch of {host} has ended\n");
    let Some(pinned) = pinned else { return ended + "nothing of it stays\n" };
    ended + &stays(pinned, *megaflows)
}

fn stays(pinned: &Path, megaflows: u64) -> String {
    format!(
        "{megaflows} megaflows go on forwarding in the kernel, pinned at {}\n\
         `weft run` takes them over, `weft stop --purge` removes them\n",
        pinned.display()
    )
}

fn removed(purged: &Purged) -> String {
    let Purged { programs, megaflows, devices } = purged;
    if *purged == Purged::default() {
        return "nothing was left behind\n".to_owned();
    }
    format!(
        "removed what was left behind: programs at {programs} devices, {megaflows} megaflows, {devices} devices of guests\n"
    )
}
