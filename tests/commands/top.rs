//! Tests of `weft top`: with text output, with JSON output, and in a pseudo-terminal.

use super::call::{weft, weft_json};
use super::routed::{FAR, Routed};
use crate::common::daemon::WEFT;
use crate::common::{Daemon, PATIENCE, traffic};
use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::{require_program, require_root};

/// `weft top` in a new pseudo-terminal.
struct Screen {
    child: Child,
    keyboard: File,
    /// The side of the terminal that programs use.
    terminal: OwnedFd,
    output: Receiver<Vec<u8>>,
    /// All output so far.
    written: Vec<u8>,
    /// The terminal settings before the start of `weft top`.
    before: Termios,
}

impl Screen {
    fn start(control: &Path, columns: u16, rows: u16) -> Self {
        let OpenptyResult { master, slave } = openpty(None, None).expect("a pseudo-terminal");
        let before = tcgetattr(&slave).expect("settings");
        resize(&slave, columns, rows);
        let end = || slave.try_clone().expect("a descriptor");
        // The pseudo-terminal must be the controlling terminal. Otherwise changes of its size send
        // no signal.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", WEFT, "top", "--interval", "0.2", "--control"])
            .arg(control)
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid starts");
        let (sender, output) = channel();
        let mut reader = File::from(master.try_clone().expect("a descriptor"));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read) = reader.read(&mut buffer)
                && read != 0
                && sender.send(buffer[..read].to_vec()).is_ok()
            {}
        });
        let keyboard = File::from(master);
        Self { child, keyboard, terminal: slave, output, written: Vec::new(), before }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    fn read(&mut self) {
        let wait = Duration::from_millis(20);
        while let Ok(bytes) = self.output.recv_timeout(wait) {
            self.written.extend(bytes);
        }
    }

    /// The lines of the last complete screen, without styles.
    fn lines(&mut self) -> Vec<String> {
        self.read();
        let text = String::from_utf8_lossy(&self.written);
        let Some((complete, _)) = text.rsplit_once("\x1b[J") else { return Vec::new() };
        let picture = complete.rsplit("\x1b[H").next().unwrap_or_default();
        picture.split("\r\n").map(|line| plain(line).trim_end().to_owned()).collect()
    }

    /// Waits for a screen for which `is_wanted` returns true.
    fn wait(&mut self, what: &str, is_wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        let begin = Instant::now();
        loop {
            let lines = self.lines();
            if is_wanted(&lines) {
                return lines;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{what}: {:?}\n{}\n{:?}",
                self.child.try_wait(),
                lines.join("\n"),
                String::from_utf8_lossy(&self.written)
            );
        }
    }

    fn resize(&self, columns: u16, rows: u16) {
        resize(&self.terminal, columns, rows);
    }

    /// Waits until the program ends, and checks that the terminal settings are restored.
    fn end(mut self) -> ExitStatus {
        let mut status = None;
        wait_until(PATIENCE, "weft top ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        let after = tcgetattr(&self.terminal).expect("settings");
        assert_eq!(after, self.before);
        // The last output may arrive after the end of the process.
        let begin = Instant::now();
        while !is_given_back(&self.written) {
            assert!(begin.elapsed() < PATIENCE, "{:?}", String::from_utf8_lossy(&self.written));
            self.read();
        }
        status.expect("wait_until returns only on success")
    }

    /// The process ID of the program behind `setsid`.
    fn pid(&self) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let text = std::fs::read_to_string(children).unwrap_or_default();
        let pid = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
        // setsid does not fork if it is not the leader of a process group.
        let own = i32::try_from(self.child.id()).expect("a process ID");
        Pid::from_raw(pid.unwrap_or(own))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Fails if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether all terminal modes that the program has changed were restored later.
fn is_given_back(written: &[u8]) -> bool {
    let text = String::from_utf8_lossy(written);
    let pairs =
        [("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h"), ("\x1b[?7l", "\x1b[?7h")];
    pairs.into_iter().all(|(taken, given_back)| {
        let (last, first) = (text.rfind(given_back), text.rfind(taken));
        first.is_some() && last > first
    })
}

fn resize(terminal: &OwnedFd, columns: u16, rows: u16) {
    let path = format!("/proc/self/fd/{}", terminal.as_raw_fd());
    let path = std::fs::read_link(path).expect("a path");
    let (columns, rows) = (columns.to_string(), rows.to_string());
    let mut command = Command::new("stty");
    command.arg("-F").arg(path).args(["columns", &columns, "rows", &rows]);
    assert!(command.status().expect("stty starts").success());
}

/// A text without escape sequences.
fn plain(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic());
        kept += end.map_or("", |end| &part[end + 1..]);
    }
    kept
}

fn has(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

#[test]
fn one_sample_has_the_traffic_of_ports_and_tunnels() {
    require_root!();
    let routed = Routed::start();
    let control = &routed.lab.control(0);
    let near = routed.near().netns.name().expect("a name").to_owned();
    // Sends ten packets per second until the test ends.
    let mut ping = Command::new("ip");
    ping.args(["netns", "exec", &near, "ping", "-q", "-i", "0.1", "-w", "30"]);
    ping.arg(std::net::IpAddr::from(FAR).to_string()).stdout(std::process::Stdio::null());
    let mut ping = ping.spawn().expect("ping starts");
    traffic::ping(&routed.near().netns, FAR.into());
    let sample = weft_json(control, &["top"]);
    let port = &sample["ports"][0];
    assert_eq!((port["name"].as_str(), port["state"].as_str()), (Some("g1"), Some("up")));
    for (what, rate) in [
        ("from the guest", &port["rx_packets"]),
        ("to the guest", &port["tx_packets"]),
        ("of the uplink", &sample["ports"][1]["tx_packets"]),
        ("of the tunnel", &sample["tunnels"][0]["rx_packets"]),
    ] {
        let rate = rate.as_f64().expect("a number");
        assert!(rate > 1.0 && rate < 100.0, "{what}: {sample}");
    }
    assert!(sample["seconds"].as_f64() > Some(0.9), "{sample}");
    assert!(
        sample["cpu_percent"].is_number() && sample["megaflows"].as_u64() > Some(0),
        "{sample}"
    );
    let (code, text, stderr) = weft(control, &["top", "--once", "--interval", "0.2"]);
    assert_eq!((code, &*stderr), (0, ""));
    for part in ["weft top  host h1", "PORT", "g1", "uplink ", "REMOTE", "geneve", "cpu "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    ping.kill().expect("ping can be ended");
    ping.wait().expect("ping ends");
    routed.daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn bad_usage_is_refused() {
    for (args, code, text) in [
        (&["--once"][..], 1, "cannot reach a daemon"),
        (&["--interval", "0"], 2, "0.2 to 3600 seconds"),
        (&["--sort", "colour"], 2, "possible values"),
        (&[], 2, "use --once or --json"),
    ] {
        let (status, _, stderr) = weft(Path::new("/nonexistent.sock"), &[&["top"], args].concat());
        assert_eq!(status, code, "{args:?}: {stderr}");
        assert!(stderr.contains(text), "{args:?}: {stderr}");
    }
}

#[test]
fn screen_follows_keys_sizes_and_the_daemon_and_is_restored() {
    require_root!();
    require_program!("setsid", "util-linux");
    require_program!("stty", "coreutils");
    let routed = Routed::start();
    let control = &routed.lab.control(0);
    let mut screen = Screen::start(control, 110, 24);
    let lines = screen.wait("the first table", |lines| has(lines, "g1") && has(lines, "uplink"));
    assert_eq!(lines.len(), 24);
    assert!(lines[4].starts_with("PORT") && lines[4].contains("DROPS/S"), "{lines:?}");

    screen.press("s");
    screen.wait("another order", |lines| has(lines, "sorted by TX PKT/S"));
    screen.press("\x1b[D\x1b[D");
    screen.wait("the column before", |lines| has(lines, "sorted by RX PKT/S (down)"));
    screen.press("r");
    screen.wait("the reverse order", |lines| has(lines, "sorted by RX PKT/S (up)"));
    screen.press("?");
    screen.wait("the help", |lines| has(lines, "weft top: keys"));
    screen.press(" ");
    screen.wait("the table again", |lines| has(lines, "g1"));
    screen.press("t");
    screen.wait("the tunnels", |lines| has(lines, "REMOTE") && has(lines, "geneve"));
    screen.press("t");

    screen.resize(60, 10);
    let small = screen.wait("a smaller table", |lines| lines.len() == 10 && has(lines, "g1"));
    assert!(small.iter().all(|line| line.chars().count() <= 60), "{small:?}");
    assert!(!has(&small, "STATE") && has(&small, "DROPS/S"), "{small:?}");
    screen.resize(20, 10);
    screen.wait("a message", |lines| has(lines, "needs 30x7 charac"));
    screen.resize(110, 24);

    screen.press("p");
    screen.wait("a pause", |lines| has(lines, "paused"));
    screen.press("p");

    // The first daemon stops, and another one starts.
    let [first, second] = routed.daemons;
    first.stop();
    // The stopping daemon may have removed its ports before the last sample.
    screen.wait("that the daemon has gone", |lines| {
        has(lines, "retrying: cannot reach a daemon") && has(lines, "PORT")
    });
    let again = routed.lab.start(0);
    let pid = format!("pid {}", again.pid());
    screen.wait("the new daemon", |lines| has(lines, &pid) && !has(lines, "retrying"));

    screen.press("q");
    assert!(screen.end().success());

    let end_by = |end: &dyn Fn(&mut Screen)| {
        let mut screen = Screen::start(control, 80, 24);
        screen.wait("the table", |lines| has(lines, "g1"));
        end(&mut screen);
        assert!(screen.end().success());
    };
    end_by(&|screen| screen.press("\x03"));
    end_by(&|screen| kill(screen.pid(), Signal::SIGTERM).expect("a child can be sent a signal"));
    end_by(&|screen| kill(screen.pid(), Signal::SIGHUP).expect("a child can be sent a signal"));
    [again, second].into_iter().for_each(Daemon::stop);
}
