//! The test bed of a trust scenario (a test of weft under attack or interruption). It runs a daemon
//! on each of the two hosts of a lab, and measures its resource use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use netdev::cpu::{process_time, resident_bytes};
use serde_json::{Value, json};

use crate::control::{ReplyForm, ask};
use crate::lab::scratch::Scratch;
use crate::lab::{Guest, Lab};
use crate::process::{Process, run};
use crate::traffic::ping::Pinger;
use crate::{Error, Result, Stop};

/// How long it may take from the start of the daemons to the first ping reply.
pub const READY_LIMIT: Duration = Duration::from_secs(15);
/// How long a reload may take.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);
/// How long `weft stop` may take.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The datapath of the hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum TrustDatapath {
    /// The kernel datapath where the kernel can do it, as `weft run` chooses.
    Auto,
    /// The kernel datapath.
    Kernel,
    /// The user datapath alone.
    User,
}

impl TrustDatapath {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::User => "user",
        }
    }
}

/// The running daemons. Dropping it ends them, and removes their files.
#[derive(Debug)]
pub struct TestBed<'a> {
    // Dropped first: the processes use the files in the directory.
    daemons: Vec<Option<Process>>,
    scratch: Scratch,
    lab: &'a Lab<'a>,
    /// The executable of weft on each host.
    programs: [&'a Path; 2],
    datapath: TrustDatapath,
    /// The limit of cached megaflows, or `None` for the default.
    megaflows: Option<usize>,
    network: PathBuf,
}

/// The resources of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Footprint {
    /// Resident memory.
    pub resident_bytes: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
}

impl<'a> TestBed<'a> {
    /// Starts `weft` on both hosts of `lab` with a datapath and the network file `text`. Each
    /// daemon caches at most `megaflows`; `None` keeps weft's default. Waits until the guests of
    /// both pairs reach each other.
    ///
    /// # Errors
    /// A daemon does not start, or a ping has no reply within 15 s.
    pub fn start(
        lab: &'a Lab<'a>,
        (weft, datapath): (&'a Path, TrustDatapath),
        text: &str,
        megaflows: Option<usize>,
    ) -> Result<Self> {
        let scratch = Scratch::create()?;
        let network = scratch.write("network.toml", text)?;
        let daemons = vec![None, None];
        let programs = [weft, weft];
        let mut bed = Self { daemons, scratch, lab, programs, datapath, megaflows, network };
        for host in 0..2 {
            bed.start_daemon(host)?;
        }
        for number in 0..2 {
            bed.wait_for_answer(lab.guest(0, number), lab.guest(1, number), READY_LIMIT)?;
        }
        Ok(bed)
    }

    /// Starts the daemon of the host `host`, from 0.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_daemon(&mut self, host: usize) -> Result<()> {
        let control = self.control(host);
        let mut command = Command::new(self.programs[host]);
        let host = &self.lab.hosts()[host];
        command.args(["run", "--host", &host.name(), "--control"]).arg(control).arg(&self.network);
        command.args(["--datapath", self.datapath.name()]);
        if let Some(megaflows) = self.megaflows {
            command.args(["--megaflows", &megaflows.to_string()]);
        }
        let name = format!("weft run --host {}", host.name());
        let process = Process::spawn(name, host.netns().command(command))?;
        self.daemons[usize::from(host.name() != "h1")] = Some(process);
        Ok(())
    }

    /// Sets the executable for the next daemon on the host `host`.
    pub fn set_program(&mut self, host: usize, weft: &'a Path) {
        self.programs[host] = weft;
    }

    /// Ends the daemon of the host `host` with `weft stop`. With the kernel datapath, eBPF programs
    /// keep forwarding with the cached megaflows.
    ///
    /// # Errors
    /// It does not end, or reports failure.
    pub fn stop_daemon(&mut self, host: usize) -> Result<()> {
        let mut command = Command::new(self.programs[host]);
        command.arg("stop").arg("--control").arg(self.control(host));
        run("weft stop", command, STOP_LIMIT, self.stop_flag())?;
        let ended = self.daemons[host].take();
        ended.map_or(Ok(()), |daemon| daemon.finish(STOP_LIMIT, self.stop_flag()).map(drop))
    }

    /// Kills the daemon of the host `host` (SIGKILL).
    ///
    /// # Errors
    /// It had already ended.
    pub fn kill_daemon(&mut self, host: usize) -> Result<()> {
        self.daemons[host].take().map_or(Ok(()), Process::kill)
    }

    /// True when the daemons have a kernel datapath, which forwards while they are not running.
    pub fn forwards_without_daemon(&self) -> bool {
        self.datapath != TrustDatapath::User && datapath_bpf::check().is_ok()
    }

    /// The lab.
    pub fn lab(&self) -> &'a Lab<'a> {
        self.lab
    }

    /// The flag that every wait polls.
    pub fn stop_flag(&self) -> &'a Stop {
        self.lab.stop()
    }

    /// # Errors
    /// [`Error::Process`] when a daemon has ended.
    pub fn check(&mut self) -> Result<()> {
        self.daemons.iter_mut().flatten().try_for_each(Process::check_running)
    }

    /// Sleeps for `duration`, and checks the daemons meanwhile.
    ///
    /// # Errors
    /// [`Error::Interrupted`], or a daemon has ended.
    pub fn pass(&mut self, duration: Duration) -> Result<()> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            self.stop_flag().sleep(left.min(Duration::from_millis(100)))?;
            self.check()?;
        }
        Ok(())
    }

    /// Waits until `to` replies to a ping of `from`. Returns how long this took.
    ///
    /// # Errors
    /// No reply within `limit`, or a daemon has ended.
    pub fn wait_for_answer(
        &mut self,
        from: &Guest,
        to: &Guest,
        limit: Duration,
    ) -> Result<Duration> {
        let start = Instant::now();
        let stop = self.stop_flag();
        let what = format!("a ping answer from {} to {}", to.name(), from.name());
        stop.wait_for(&what, limit, || {
            self.check()?;
            // The guest has no route until the daemon has created its device.
            let opened = from.run(|| Pinger::open(to.ip4().into()))?;
            let answered = opened
                .and_then(|mut pinger| pinger.wait_for_answer(Duration::from_millis(200), stop));
            match answered {
                Err(Error::Interrupted) => Err(Error::Interrupted),
                other => Ok(other.ok()),
            }
        })?;
        Ok(start.elapsed())
    }

    /// Waits until the daemon of `host` responds to requests. Returns how long this took.
    ///
    /// # Errors
    /// No response within `limit`, or a daemon has ended.
    pub fn wait_ready(&mut self, host: usize, limit: Duration) -> Result<Duration> {
        let start = Instant::now();
        let stop = self.stop_flag();
        let what = format!("an answer of the daemon of host {}", host + 1);
        stop.wait_for(&what, limit, || {
            self.check()?;
            Ok(self.counters(host).ok())
        })?;
        Ok(start.elapsed())
    }

    /// The resources of the daemon of `host`.
    ///
    /// # Errors
    /// The daemon is not running.
    pub fn footprint(&self, host: usize) -> Result<Footprint> {
        let pid = self.pid(host)?;
        let count = |what: &str| -> Result<usize> {
            let path = format!("/proc/{pid}/{what}");
            Ok(fs::read_dir(&path).map_err(Error::io(format!("list {path}")))?.count())
        };
        Ok(Footprint {
            resident_bytes: resident_bytes(pid)?,
            descriptors: count("fd")?,
            threads: count("task")?,
        })
    }

    /// The processor time that the daemon of `host` has used.
    ///
    /// # Errors
    /// The daemon is not running.
    pub fn cpu_time(&self, host: usize) -> Result<Duration> {
        Ok(process_time(self.pid(host)?)?)
    }

    fn pid(&self, host: usize) -> Result<u32> {
        let absent = || Error::Other(format!("no daemon runs on host {}", host + 1));
        Ok(self.daemons[host].as_ref().ok_or_else(absent)?.pid())
    }

    /// All counters of the daemon of `host`, as `weft show --json` prints them.
    ///
    /// # Errors
    /// The daemon does not respond.
    pub fn counters(&self, host: usize) -> Result<Value> {
        ask(&self.control(host), &json!({ "command": "show" }), ReplyForm::Line, |_| {})
    }

    /// How many connections were opened by packets from `port` on `host`.
    ///
    /// # Errors
    /// The daemon does not respond.
    pub fn port_connections(&self, host: usize, port: &str) -> Result<u64> {
        let mut found = 0;
        ask(
            &self.control(host),
            &json!({ "command": "connection_use" }),
            ReplyForm::Rows,
            |row| {
                let name = row["name"].as_str().unwrap_or_default();
                // Tunnels are named "tunnel TYPE", and the uplink "uplink DEVICE".
                if row["what"] == "port" && name.split(' ').next() == Some(port) {
                    found = number(row, "/connections");
                }
            },
        )?;
        Ok(found)
    }

    /// The counters of the crate `switch` in the daemon of `host`, without the megaflows.
    ///
    /// # Errors
    /// The daemon does not respond.
    pub fn switch_counters(&self, host: usize) -> Result<Value> {
        // No megaflow has that many packets, so the response has no rows.
        let request = json!({ "command": "flows", "min_packets": u64::MAX });
        let mut end = ask(&self.control(host), &request, ReplyForm::Rows, |_| {})?;
        Ok(end["switch"].take())
    }

    /// Makes the daemon of `host` load the network file `text`.
    ///
    /// # Errors
    /// The daemon refuses it, or does not respond.
    pub fn reload(&self, host: usize, text: &str) -> Result<()> {
        let file = self.scratch.write("reload.toml", text)?;
        let mut command = Command::new(self.programs[host]);
        command.arg("reload").arg("--control").arg(self.control(host)).arg(file);
        run("weft reload", command, RELOAD_LIMIT, self.stop_flag()).map(drop)
    }

    /// Ends the daemons.
    ///
    /// # Errors
    /// A daemon reports failure, or had to be killed.
    pub fn stop(mut self) -> Result<()> {
        let ended = self.daemons.drain(..).flatten().map(Process::stop);
        ended.fold(Ok(()), Result::and)
    }

    fn control(&self, host: usize) -> PathBuf {
        self.scratch.path().join(format!("h{}.sock", host + 1))
    }
}

/// The number at the JSON pointer `path` of counters, or 0.
pub fn number(counters: &Value, path: &str) -> u64 {
    counters.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}
