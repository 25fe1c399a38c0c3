//! `weft support`: collects diagnostic data of this host in one archive.

use crate::clock::Utc;
use crate::control::DaemonSelector;
use crate::daemon::FileReads;
use crate::{Failure, stdio};
use anyhow::{Context, Result, bail};
use netdev::signal::Signals;
use network::{Bridge, Network};
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
/// file with its comments, and the flow files of its bridges. It has the last messages of the
/// daemon, and devices, addresses, routes and qdiscs of the host. weft adds no packets and no keys,
/// but the views show the names and addresses of guests and which guests communicate: read the
/// archive before you send it.
///
/// The command also works while no daemon runs. missing.txt in the archive lists what could not be
/// collected, and what was cut: each part has at most 8 MiB and 10 seconds.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// The archive to write, which must not exist [default: weft-support-TIME.tar.gz in the working
    /// directory]
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
  weft support --host h1 -o h1.tar.gz network.toml
  weft support --json | jq -r .archive

Exit codes: 0 the archive is written, 1 it cannot be written, 2 bad usage.";

/// The time limit for collecting one part.
const PART_LIMIT: Duration = Duration::from_secs(10);
/// The maximum size of a part, in bytes. The rest is cut.
const PART_BYTES: usize = 8 << 20;
/// The time limit for writing the archive.
const TAR_LIMIT: Duration = Duration::from_secs(60);
/// The polling interval while a program runs.
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

/// Other programs whose output describes the host: the name of the file and the command.
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

/// Files of the host: the name in the archive and the path.
const FILES: [(&str, &str); 5] = [
    ("os-release.txt", "/etc/os-release"),
    ("memory.txt", "/proc/meminfo"),
    ("load.txt", "/proc/loadavg"),
    ("softnet.txt", "/proc/net/softnet_stat"),
    ("snmp.txt", "/proc/net/snmp"),
];

pub fn support(args: &Args) -> Result<(), Failure> {
    // Fails if several daemons run and none is named. A daemon that does not reply is reported in
    // the archive.
    let control = args.target.find()?;
    // Without fractions of a second, and without colons: tar takes the text before a colon for a
    // host name.
    let time = Utc(SystemTime::now()).to_string();
    let time = time.split('.').next().unwrap_or(&time).replace([':', '-'], "");
    let name = format!("weft-support-{time}Z");
    let archive = args.output.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    // Opened first, so that nothing is collected if the archive cannot be written. Must be a new
    // file: an existing file or link may belong to another user.
    let failed = || format!("cannot write {}", archive.display());
    let file = File::options().write(true).create_new(true).mode(0o600).open(&archive);
    let file = file.with_context(failed)?;
    let collected = collect(args, control.as_deref(), &name, file).with_context(failed);
    let Collection { parts, missing, .. } = collected.inspect_err(|_| {
        // An incomplete archive would be misleading.
        let _ = fs::remove_file(&archive);
    })?;
    if args.json {
        let missing = missing.iter();
        let missing: Vec<_> =
            missing.map(|(part, reason)| json!({ "part": part, "reason": reason })).collect();
        return stdio::print_json(&json!({
            "archive": archive, "parts": parts, "missing": missing,
        }));
    }
    stdio::print(&format!(
        "{}: {} parts, {} missing or cut (see missing.txt)\nRead it before you send it: it shows \
         your guests and which guests communicate.\n",
        archive.display(),
        parts.len(),
        missing.len()
    ))
}

/// The collected parts.
#[derive(Default)]
struct Collection {
    parts: Vec<String>,
    /// Parts that are missing or cut, each with the reason.
    missing: Vec<(String, String)>,
}

impl Collection {
    fn add(&mut self, folder: &Path, name: &str, part: Part) -> io::Result<()> {
        let Part { bytes, fault } = part;
        if !bytes.is_empty() || fault.is_none() {
            fs::write(folder.join(name), bytes)?;
            self.parts.push(name.to_owned());
        }
        self.missing.extend(fault.map(|why| (name.to_owned(), why)));
        Ok(())
    }
}

/// One file of the archive.
struct Part {
    bytes: Vec<u8>,
    /// Why the part is missing or incomplete.
    fault: Option<String>,
}

impl Part {
    fn new(mut bytes: Vec<u8>) -> Self {
        let is_cut = bytes.len() > PART_BYTES;
        bytes.truncate(PART_BYTES);
        Self { bytes, fault: is_cut.then(|| format!("cut after {} MiB", PART_BYTES >> 20)) }
    }

    fn failed(reason: impl ToString) -> Self {
        Self { bytes: Vec::new(), fault: Some(reason.to_string()) }
    }

    fn of_file(path: &Path) -> Self {
        let mut bytes = Vec::new();
        let read = File::open(path)
            .and_then(|file| file.take(PART_BYTES as u64 + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => Self::new(bytes),
            Err(error) => Self::failed(format!("{}: {error}", path.display())),
        }
    }

    fn of_read(read: Result<Vec<u8>, Failure>) -> Self {
        match read {
            Ok(bytes) => Self::new(bytes),
            Err(Failure::Input(error) | Failure::Runtime(error)) => {
                Self::failed(format!("{error:#}"))
            }
            Err(_) => Self::failed("it cannot be read"),
        }
    }

    /// The standard output of a program.
    ///
    /// # Errors
    /// The user has interrupted this command.
    fn of_program(command: &mut Command, limit: Duration, stop: &Interrupted) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let name = command.get_program().to_string_lossy();
                return Ok(Self::failed(format!("cannot start {name}: {error}")));
            }
        };
        let out = child.stdout.take().map(read_in_background);
        let errors = child.stderr.take().map(read_in_background);
        let end = wait(&mut child, limit, stop)?;
        // The pipes close when the program ends, unless a descendant keeps them open.
        let take = |reader: Option<Receiver<Vec<u8>>>| {
            reader.and_then(|reader| reader.recv_timeout(PIPE_LIMIT).ok())
        };
        let (out, errors) = (take(out), take(errors).unwrap_or_default());
        let Some(bytes) = out else { return Ok(Self::failed("its output does not end")) };
        let part = Self::new(bytes);
        // A failed program that has printed something is no fault: `weft doctor` fails if it has
        // findings, and `systemctl status` if a unit is down.
        let fault = match end {
            End::Failure if part.bytes.is_empty() => {
                let errors = String::from_utf8_lossy(&errors);
                Some(errors.lines().last().unwrap_or("it failed and printed nothing").to_owned())
            }
            End::Killed => Some(format!("no end after {} s", limit.as_secs())),
            _ => part.fault,
        };
        Ok(Self { bytes: part.bytes, fault })
    }
}

/// How long to wait for the pipes to close after a program has ended.
const PIPE_LIMIT: Duration = Duration::from_secs(1);

/// A function that returns true once the user has interrupted this command.
type Interrupted<'a> = dyn Fn() -> bool + 'a;

/// A directory that only its owner can read. It is removed on drop.
struct ScratchFolder(PathBuf);

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // If this fails, files are left in the temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn collect(args: &Args, control: Option<&Path>, name: &str, archive: File) -> Result<Collection> {
    // Handles Ctrl-C, so that the scratch directory is removed.
    let signals = Signals::take()?;
    let stop: &Interrupted = &|| !matches!(signals.read(), Ok(None));
    let scratch = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&scratch)?;
    let scratch = ScratchFolder(scratch);
    let folder = scratch.0.join(name);
    fs::create_dir(&folder)?;

    let mut collected = Collection::default();
    let weft = std::env::current_exe()?;
    for (part, arguments) in VIEWS {
        let mut command = Command::new(&weft);
        command.args(arguments);
        if let Some(control) = control {
            command.arg("--control").arg(control);
        }
        collected.add(&folder, part, Part::of_program(&mut command, PART_LIMIT, stop)?)?;
    }
    for (part, words) in PROGRAMS {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        collected.add(&folder, part, Part::of_program(&mut command, PART_LIMIT, stop)?)?;
    }
    for (part, path) in FILES {
        collected.add(&folder, part, Part::of_file(Path::new(path)))?;
    }
    // Read with a time limit, because the file system may hang.
    let reads = FileReads::new();
    let network = reads.read(&args.network);
    let flow_files = network.as_ref().map_or_else(|_| Vec::new(), |bytes| flow_files(args, bytes));
    collected.add(&folder, "network.toml", Part::of_read(network))?;
    for (part, path) in flow_files {
        collected.add(&folder, &part, Part::of_read(reads.read(&path)))?;
    }
    let version = concat!(env!("CARGO_PKG_VERSION"), "\n");
    collected.add(&folder, "version.txt", Part::new(version.into()))?;
    let missing = collected.missing.iter().map(|(part, why)| format!("{part}: {why}\n"));
    fs::write(folder.join("missing.txt"), missing.collect::<String>())?;

    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--directory"]).arg(&scratch.0).arg(name);
    let mut tar = tar.stdin(Stdio::null()).stdout(archive).spawn().context("cannot start tar")?;
    match wait(&mut tar, TAR_LIMIT, stop)? {
        End::Success => Ok(collected),
        End::Failure => bail!("tar failed"),
        End::Killed => bail!("tar did not end within {} s", TAR_LIMIT.as_secs()),
    }
}

/// The flow files of the bridges in a network file, each with the name of its part. Empty if the
/// network file is invalid.
fn flow_files(args: &Args, network: &[u8]) -> Vec<(String, PathBuf)> {
    let network = Network::parse_bytes(network, "network.toml");
    let bridges = network.iter().flat_map(Network::bridges).zip(1..);
    let directory = args.network.parent().unwrap_or(Path::new(""));
    let part = |(bridge, number): (&Bridge, u32)| {
        let path = directory.join(bridge.flows.as_ref()?);
        // The name of a bridge may contain characters that are not valid in a file name.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let name = bridge.name.replace(|c| !is_plain(c), "_");
        Some((format!("bridge-{number}-{name}.flows"), path))
    };
    bridges.filter_map(part).collect()
}

/// Reads a pipe to its end, and keeps one byte more than [`PART_BYTES`].
fn read_in_background(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // On an error, the bytes read so far are kept. The rest is read and discarded, so that the
        // program does not block.
        let _ = pipe.by_ref().take(PART_BYTES as u64 + 1).read_to_end(&mut bytes);
        let _ = io::copy(&mut pipe, &mut io::sink());
        // Fails if the receiver gave up at the time limit.
        let _ = sender.send(bytes);
    });
    receiver
}

/// How a program ended.
enum End {
    Success,
    Failure,
    /// It was killed at its time limit.
    Killed,
}

/// Waits for the end of a program, which is killed after `limit`.
///
/// # Errors
/// The user has interrupted this command; the program is killed.
fn wait(child: &mut Child, limit: Duration, stop: &Interrupted) -> Result<End> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { End::Success } else { End::Failure });
        }
        let is_interrupted = stop();
        if is_interrupted || Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            if is_interrupted {
                bail!("interrupted");
            }
            return Ok(End::Killed);
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
    fn output_is_kept_when_a_program_fails_never_ends_or_prints_too_much() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            let limit = Duration::from_secs(2);
            Part::of_program(command.args(["-c", script]), limit, &|| false).unwrap()
        };
        let found = |script: &str| {
            let Part { bytes, fault } = shell(script);
            (String::from_utf8(bytes).unwrap(), fault.unwrap_or_default())
        };
        let texts = |out: &str, fault: &str| (out.to_owned(), fault.to_owned());
        assert_eq!(found("echo found; exit 1"), texts("found\n", ""));
        assert_eq!(found("echo first >&2; echo reason >&2; exit 1"), texts("", "reason"));
        assert_eq!(found("echo begun; exec sleep 60"), texts("begun\n", "no end after 2 s"));
        let much = shell("yes | head -c 20000000");
        assert_eq!(
            (much.bytes.len(), much.fault.as_deref()),
            (PART_BYTES, Some("cut after 8 MiB"))
        );
        let none = Part::of_program(&mut Command::new("/nowhere"), PIPE_LIMIT, &|| false).unwrap();
        assert!(none.fault.unwrap().starts_with("cannot start /nowhere: No such file"));
    }

    #[test]
    fn program_is_killed_when_the_user_interrupts() {
        let start = Instant::now();
        let mut sleep = Command::new("sleep");
        let ended = Part::of_program(sleep.arg("60"), Duration::from_secs(60), &|| true);
        assert_eq!(ended.err().unwrap().to_string(), "interrupted");
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
