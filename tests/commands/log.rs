//! ACLs with `log`, and what becomes of the log when nobody reads standard error.

use crate::common::daemon::port;
use crate::common::{Daemon, Datapath, Lab, PATIENCE, Setup, traffic};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;
use std::io::{PipeReader, Write};
use std::net::SocketAddr;
use std::process::Stdio;
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
        let lines = || daemon.stderr().matches("name=flood").count() as u64;
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
        let asked = Instant::now();
        let status = blocked.wait_end(PATIENCE);
        println!("{datapath:?}: it has ended {:?} after SIGTERM", asked.elapsed());
        assert!(status.success(), "{status}");
        reading.stop();
    }
}
