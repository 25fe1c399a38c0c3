//! ACLs with `log`, and what becomes of the log when nobody reads standard error.

use crate::common::daemon::{WEFT, port};
use crate::common::{Daemon, Datapath, Lab, PATIENCE, Setup, traffic};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;
use std::io::{PipeReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::require_root;

/// Two entries that log: datagrams to port 53 are dropped, pings are allowed.
const LISTS: &str = "[[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = 1000\n\
                     match = 'udp.dst == 53'\naction = \"drop\"\nlog = \"flood\"\n\
                     [[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = 1000\n\
                     match = 'icmp4'\naction = \"allow\"\nlog = \"pings\"\n";
/// Datagrams of a flood.
const FLOOD: u64 = 3000;
/// Records of one ACL: per second, and at once.
const RATE: u64 = 10;
const BURST: u64 = 20;

/// Sends datagrams that an ACL drops and logs. Returns how many it has dropped.
fn flood(lab: &Lab, daemon: &Daemon) -> u64 {
    let (near, far) = lab.ends();
    let socket = traffic::udp_socket(near, 4);
    let to = SocketAddr::new(far.ip(4), 53);
    let send = || socket.send_to(b"a datagram that is logged", to).expect("a datagram is sent");
    let dropped = || port(daemon, "g1").drops.get("flow_drop").copied().unwrap_or_default();
    // The first waits for a decision; a flood at once would overflow its queue.
    send();
    wait_until(PATIENCE, "the first datagram is dropped", || dropped() == 1);
    for count in 1..FLOOD {
        send();
        if count % 100 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // A datagram may be lost before the switch, so the test does not wait for all.
    wait_until(PATIENCE, "most datagrams are dropped", || dropped() > FLOOD * 9 / 10);
    let mut last = 0;
    wait_until(PATIENCE, "no more datagrams are dropped", || {
        std::thread::sleep(Duration::from_millis(50));
        std::mem::replace(&mut last, dropped()) == last
    });
    last
}

#[test]
fn flooded_acl_logs_no_more_than_its_rate_and_counts_the_rest() {
    require_root!();
    for datapath in Datapath::BOTH {
        let lab = Lab::new(Setup::new("geneve").datapath(datapath).more(LISTS));
        let [daemon, other] = lab.start_both();
        let (near, far) = lab.ends();
        traffic::ping(&near.netns, far.ip(4));
        let started = Instant::now();
        let dropped = flood(&lab, &daemon);
        let lines = || daemon.stderr().matches("name=\"flood\"").count() as u64;
        wait_until(PATIENCE, "each record is written or counted", || {
            lines() + daemon.show().log.over_rate == dropped
        });
        let log = daemon.show().log;
        let permitted = BURST + RATE * (started.elapsed().as_secs() + 1);
        assert!((BURST..=permitted).contains(&lines()), "{} lines, {datapath:?}", lines());
        assert_eq!(log.not_written, 0, "{datapath:?}");
        daemon.wait_says("log records of ACLs were over their rate limit most_by=flood");
        [daemon, other].into_iter().for_each(Daemon::stop);
    }
}

/// A pipe that is full, and that nobody reads while the reader is kept.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let size = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).expect("a pipe has a size");
    let size = usize::try_from(size).expect("a size is positive");
    writer.write_all(&vec![b'x'; size]).expect("the pipe takes its size");
    (reader, writer.into())
}

#[test]
fn switch_forwards_answers_and_stops_when_nobody_reads_standard_error() {
    require_root!();
    for datapath in Datapath::BOTH {
        let lab = Lab::new(Setup::new("geneve").datapath(datapath).more(LISTS));
        let (_unread, stderr) = full_pipe();
        let mut blocked = lab.spawn_with_stderr(0, stderr);
        let reading = lab.start(1);
        blocked.wait_ready();
        let (near, far) = lab.ends();
        traffic::ping(&near.netns, far.ip(4));
        let dropped = flood(&lab, &blocked);
        wait_until(PATIENCE, "records are counted", || {
            blocked.show().log.over_rate >= dropped - BURST - RATE * PATIENCE.as_secs()
        });
        traffic::ping(&near.netns, far.ip(4));
        traffic::tcp(near, far, 4, 1 << 16);
        blocked.signal(Signal::SIGTERM);
        let start = Instant::now();
        let status = blocked.wait_end(PATIENCE);
        println!("{datapath:?}: it has ended {:?} after SIGTERM", start.elapsed());
        assert!(status.success(), "{status}");
        reading.stop();
    }
}

#[test]
fn lines_are_json_objects_with_identifiers_when_that_is_chosen() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve"));
    let daemon = lab.start_with(0, &["--log-format", "json"]);
    daemon.wait_says("\"started\"");
    let stderr = daemon.stderr();
    let lines: Vec<serde_json::Value> =
        stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        for member in ["time", "level", "id", "message"] {
            assert!(line[member].is_string(), "{member}: {line}");
        }
    }
    let up = lines.iter().find(|line| line["id"] == "port-up").expect("a port is up");
    assert_eq!((&up["level"], &up["port"]), (&"info".into(), &"g1".into()));
    daemon.stop();

    // An error before the start is an object as well.
    let missing = Command::new(WEFT)
        .args(["run", "--log-format", "json", "--host", "h1", "/nonexistent.toml"])
        .output()
        .expect("weft starts");
    let line = serde_json::from_slice::<serde_json::Value>(&missing.stderr).expect("JSON");
    assert_eq!((&line["id"], missing.status.code()), (&"failed".into(), Some(2)));
    assert!(line["message"].as_str().expect("a text").contains("/nonexistent.toml"), "{line}");
}

#[test]
fn lines_have_priorities_when_standard_error_is_the_journal() {
    require_root!();
    let (mut journal, stderr) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let stderr = OwnedFd::from(stderr);
    let path = format!("/proc/self/fd/{}", stderr.as_raw_fd());
    let facts = std::fs::metadata(path).expect("a socket has a number");
    let run = |stream: &str, stderr: Stdio| {
        let mut command = Command::new(WEFT);
        command.args(["run", "--host", "h1", "/nonexistent.toml"]).env("JOURNAL_STREAM", stream);
        command.stderr(stderr).output().expect("weft starts").stderr
    };
    // systemd sets the variable to device and inode of the socket.
    let stream = format!("{}:{}", facts.dev(), facts.ino());
    run(&stream, stderr.into());
    let mut text = String::new();
    journal.read_to_string(&mut text).expect("text");
    assert!(text.starts_with("<3>weft: ") && text.contains("/nonexistent.toml"), "{text}");
    // The variable is inherited, but standard error is another file.
    let other = run(&stream, Stdio::piped());
    assert!(other.starts_with(b"weft: "), "{}", String::from_utf8_lossy(&other));
}
