//! `weft support`: collects what somebody needs to find a fault of this host, in one archive.

use crate::clock::Utc;
use crate::control::DaemonSelector;
use crate::{Failure, stdio};
use anyhow::{Context, Result, anyhow, bail};
use netdev::signal::Signals;
use serde_json::json;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Collect what is needed to find a fault of this host, in one archive.
///
/// The archive has the views of the running switch as JSON, the findings of the doctor, the network
/// file, the last messages of the daemon, and devices, addresses, routes and qdiscs of the host. It
/// has no packets of guests, no keys and no passwords; the names and addresses of the network are
/// in it. What cannot be had is listed in `missing.txt`: the command also works while no daemon
/// runs. Each part has at most 8 MiB and 10 seconds.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// The archive to write [default: weft-support-TIME.tar.gz in the working directory]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The network file
    #[arg(default_value = "/etc/weft/network.toml")]
    network: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  weft support
  weft support --host h1 -o /tmp/h1.tar.gz network.toml
  weft support --json | jq -r .archive

Exit codes: 0 the archive is written, 1 it cannot be written, 2 bad usage.";

/// How long a part may take.
const PART_LIMIT: Duration = Duration::from_secs(10);
/// What is kept of a part.
const PART_BYTES: u64 = 8 << 20;
/// How often the end of a program is looked for.
const POLL: Duration = Duration::from_millis(10);

/// Views of the running switch: the name of the file and the arguments.
const VIEWS: [(&str, &[&str]); 10] = [
    ("show.json", &["show", "--json"]),
    ("ports.json", &["ports", "--json"]),
    ("tunnels.json", &["tunnels", "--json"]),
    ("fdb.json", &["fdb", "--json"]),
    ("connections.json", &["ct", "--stats", "--json"]),
    ("megaflows.json", &["flows", "--sort", "packets", "--json"]),
    ("logical-flows.json", &["flows", "--logical", "--json"]),
    ("pools.json", &["port", "list", "--json"]),
    ("doctor.json", &["doctor", "--json"]),
    ("show.txt", &["show"]),
];

/// What other programs say of the host.
const PROGRAMS: [(&str, &[&str]); 8] = [
    ("kernel.txt", &["uname", "-a"]),
    ("links.txt", &["ip", "-details", "-statistics", "link"]),
    ("addresses.txt", &["ip", "address"]),
    ("routes.txt", &["ip", "route", "show", "table", "all"]),
    ("neighbours.txt", &["ip", "neighbour"]),
    ("qdiscs.txt", &["tc", "-statistics", "qdisc"]),
    ("units.txt", &["systemctl", "--no-pager", "--full", "status", "weft", "weft-ovn"]),
    (
        "log.txt",
        &[
            "journalctl",
            "--no-pager",
            "--output=short-iso-precise",
            "--lines=5000",
            "--unit=weft",
            "--unit=weft-ovn",
        ],
    ),
];

/// Files of the host.
const FILES: [(&str, &str); 5] = [
    ("os-release.txt", "/etc/os-release"),
    ("memory.txt", "/proc/meminfo"),
    ("load.txt", "/proc/loadavg"),
    ("softnet.txt", "/proc/net/softnet_stat"),
    ("snmp.txt", "/proc/net/snmp"),
];

pub fn support(args: &Args) -> Result<(), Failure> {
    // A socket that cannot be chosen is bad usage; that no daemon answers is a finding.
    let control = args.target.find()?;
    // Without fractions of a second, and with no colon, which tar takes for a host name.
    let time = Utc(SystemTime::now()).to_string();
    let time = time.split('.').next().unwrap_or(&time).replace([':', '-'], "");
    let name = format!("weft-support-{time}Z");
    let archive = args.output.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    // Opened first: nothing is collected for an archive that cannot be written.
    let failed = || format!("cannot write {}", archive.display());
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&archive);
    let file = file.with_context(failed)?;
    let made = match collect(args, control.as_deref(), &name, file).with_context(failed) {
        Ok(made) => made,
        Err(error) => {
            // An unfinished archive would only mislead.
            let _ = fs::remove_file(&archive);
            return Err(error.into());
        }
    };
    let missing: Vec<_> = made.missing.iter().map(|(part, why)| json!([part, why])).collect();
    if args.json {
        let object = json!({ "archive": archive, "parts": made.parts, "missing": missing });
        return stdio::print_json(&object);
    }
    stdio::print(&format!(
        "{}: {} parts, {} missing (see missing.txt)\nRead it before you send it: it has the names \
         and addresses of your network.\n",
        archive.display(),
        made.parts.len(),
        missing.len()
    ))
}

/// What was collected.
#[derive(Default)]
struct Collection {
    parts: Vec<String>,
    /// Parts that could not be had, each with the reason.
    missing: Vec<(String, String)>,
}

impl Collection {
    fn add(&mut self, folder: &Path, name: &str, content: Result<Vec<u8>>) -> Result<()> {
        match content {
            Ok(bytes) => {
                fs::write(folder.join(name), bytes)?;
                self.parts.push(name.to_owned());
            }
            Err(why) => self.missing.push((name.to_owned(), format!("{why:#}"))),
        }
        Ok(())
    }
}

/// A directory that only its owner can read, removed in the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is a leftover in a temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn collect(args: &Args, control: Option<&Path>, name: &str, archive: File) -> Result<Collection> {
    // Ctrl-C ends the program that runs at that time, and is noticed before the next one.
    let signals = Signals::take()?;
    let go_on = || match signals.read()? {
        None => Ok(()),
        Some(_) => bail!("interrupted"),
    };
    let above = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&above)?;
    let above = Folder(above);
    let folder = above.0.join(name);
    fs::create_dir(&folder)?;

    let mut made = Collection::default();
    let weft = std::env::current_exe()?;
    for (part, arguments) in VIEWS {
        let mut command = Command::new(&weft);
        command.args(arguments);
        if let Some(control) = control {
            command.arg("--control").arg(control);
        }
        go_on()?;
        made.add(&folder, part, printed(command))?;
    }
    for (part, words) in PROGRAMS {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        go_on()?;
        made.add(&folder, part, printed(command))?;
    }
    for (part, path) in FILES {
        made.add(&folder, part, beginning(Path::new(path)))?;
    }
    made.add(&folder, "network.toml", network::read_file(&args.network).map_err(|e| anyhow!(e)))?;
    made.add(&folder, "version.txt", Ok(concat!(env!("CARGO_PKG_VERSION"), "\n").into()))?;
    let missing = made.missing.iter().map(|(part, why)| format!("{part}: {why}\n"));
    fs::write(folder.join("missing.txt"), missing.collect::<String>())?;

    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--directory"]).arg(&above.0).arg(name).stdout(archive);
    match tar.status().context("cannot start tar")?.success() {
        true => Ok(made),
        false => bail!("tar failed"),
    }
}

/// The beginning of a file.
fn beginning(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(|| path.display().to_string())?;
    file.take(PART_BYTES).read_to_end(&mut bytes).with_context(|| path.display().to_string())?;
    Ok(bytes)
}

/// What a program prints on standard output, within the limits.
fn printed(mut command: Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let out = child.stdout.take().map(read_in_background);
    let errors = child.stderr.take().map(read_in_background);
    let deadline = Instant::now() + PART_LIMIT;
    let end = wait(&mut child, deadline)?;
    // A descendant may hold the pipe open.
    let take = |reader: Option<Reading>| {
        let left = deadline.saturating_duration_since(Instant::now()).max(POLL);
        reader.and_then(|reader| reader.recv_timeout(left).ok()).unwrap_or_default()
    };
    let (out, errors) = (take(out), take(errors));
    // The doctor has findings, and `systemctl status` a unit that is down: both print and fail.
    if end || !out.is_empty() {
        return Ok(out);
    }
    let errors = String::from_utf8_lossy(&errors);
    bail!("{}", errors.lines().last().unwrap_or("the program failed and said nothing"))
}

type Reading = Receiver<Vec<u8>>;

/// Reads the first [`PART_BYTES`] of a pipe.
fn read_in_background(pipe: impl Read + Send + 'static) -> Reading {
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read until an error is kept. Nobody waits after the time limit.
        let mut pipe = pipe.take(PART_BYTES);
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
        let _ = io::copy(&mut pipe.into_inner(), &mut io::sink());
    });
    receiver
}

/// Waits for the end of a program; ends it at the deadline. Returns whether it succeeded.
fn wait(child: &mut Child, deadline: Instant) -> Result<bool> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            bail!("no end after {} s", PART_LIMIT.as_secs());
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::Parser;

    #[test]
    fn views_are_valid_command_lines() {
        for (part, arguments) in VIEWS {
            let words = ["weft"].iter().chain(arguments).chain(&["--control", "/run/x.sock"]);
            assert!(Cli::try_parse_from(words).is_ok(), "{part}: {arguments:?}");
        }
    }

    #[test]
    fn output_is_kept_when_a_program_fails_and_bounded_when_it_never_ends() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            printed(command)
        };
        assert_eq!(shell("echo found; exit 1").unwrap(), b"found\n");
        let told = shell("echo first >&2; echo reason >&2; exit 1").unwrap_err();
        assert_eq!(told.to_string(), "reason");
        let much = shell("yes").unwrap_err();
        assert_eq!(much.to_string(), "no end after 10 s");
        let much = shell("yes | head -c 20000000").unwrap();
        assert_eq!(much.len() as u64, PART_BYTES);
    }
}
