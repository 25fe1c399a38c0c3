//! Tests failures in a daemon's environment: namespaces of guests that are removed and created
//! again, changed routes, signals, a second daemon, invalid input, missing privileges. The daemon
//! must log the failure, and recover or exit with a clear error. It must leave nothing behind.

use crate::common::daemon::{MEGAFLOWS, WEFT, no_answer, wait_port};
use crate::common::{Attachment, Daemon, Datapath, Lab, PATIENCE, Setup, TUNNELS, traffic};
use netdev::{Netns, OwnedNetns, Route};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::program::copy_program;
use testkit::require_root;

/// The names of all network devices of a namespace.
fn links(netns: &Netns) -> Vec<String> {
    let netlink = netns.netlink().expect("a netlink socket");
    let mut names: Vec<_> =
        netlink.links().expect("the links").into_iter().map(|link| link.name).collect();
    names.sort();
    names
}

/// The network devices of all hosts and guests.
fn all_links(lab: &Lab) -> Vec<Vec<String>> {
    let hosts = lab.hosts.iter().map(|host| &host.netns);
    hosts.chain(lab.guests.iter().map(|guest| &guest.netns)).map(|netns| links(netns)).collect()
}

#[test]
fn guest_is_reachable_again_when_its_namespace_is_recreated() {
    require_root!();
    let mut lab = Lab::new(Setup::new("geneve").guests(1, 2));
    let daemons = lab.start_both();
    traffic::ping(&lab.guests[0].netns, lab.guests[1].ip(4));

    // Dropping the guest removes its namespace, unless weft still holds a reference to it.
    let gone = lab.guests.remove(1);
    let (name, address) = (gone.netns.name().expect("a name").to_owned(), gone.ip(4));
    drop(gone);
    daemons[1].wait_says("has vanished");
    wait_port(&daemons[1], "g2", "down", |port| port.state != "up");
    let (near, other) = (&lab.guests[0], &lab.guests[1]);
    no_answer(&near.netns, address, &daemons);
    let drops = daemons[1].show().uplink.drops;
    assert!(drops.get("port_down").is_some_and(|&count| count > 0), "counted as such: {drops:?}");
    traffic::ping(&near.netns, other.ip(4));

    let _again = OwnedNetns::create(&name).expect("the namespace can be made again");
    wait_port(&daemons[1], "g2", "up again", |port| port.state == "up");
    traffic::ping(&near.netns, address);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn guest_is_attached_when_its_namespace_is_created_after_the_daemon() {
    require_root!();
    let mut lab = Lab::new(Setup::new("stt"));
    let late = lab.guests.remove(1);
    let (name, address) = (late.netns.name().expect("a name").to_owned(), late.ip(6));
    drop(late);
    let daemon = lab.spawn(1);
    daemon.wait_says("port is down, will retry");
    let near = lab.start(0);
    let _late = OwnedNetns::create(&name).expect("a namespace can be made");
    traffic::ping(&lab.guests[0].netns, address);
    daemon.stop();
    near.stop();
}

#[test]
fn guest_works_over_ipv4_when_ipv6_is_disabled_in_its_namespace() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let guest = &lab.guests[1];
    for which in ["all", "default"] {
        let key = format!("net/ipv6/conf/{which}/disable_ipv6");
        guest.netns.sysctl(&key, "1").expect("a sysctl can be set");
    }
    let daemons = lab.start_both();
    daemons[1].wait_says(&format!("cannot add the IPv6 address {}/64 of a guest", guest.ip(6)));
    traffic::ping(&lab.guests[0].netns, guest.ip(4));
    daemons.into_iter().for_each(Daemon::stop);
}

/// More end points than fit into one batch of route lookups.
const MANY: u16 = 700;

/// A part of the network file with `MANY` hosts behind a router, each with a guest.
fn many_hosts() -> String {
    let one = |number: u16| {
        let [high, low] = number.to_be_bytes();
        format!(
            r#"
[[host]]
name = "far{number}"
uplink = "eth0"
underlay = ["10.250.{high}.{low}"]
[[logical_switch.port]]
name = "far{number}"
host = "far{number}"
mac = "02:00:00:01:{high:02x}:{low:02x}"
device = {{ tap = "far{number}" }}
"#
        )
    };
    (1..=MANY).map(one).collect()
}

#[test]
fn all_end_points_are_updated_when_their_common_route_changes() {
    require_root!();
    let lab = Lab::new(Setup::new("stt").more(&many_hosts()));
    let daemon = lab.start(0);
    let resolved = || {
        let endpoints = daemon.show().endpoints;
        endpoints.iter().filter(|endpoint| endpoint.neighbour == "resolved").count()
    };
    let all = usize::from(MANY) + 1;
    assert_eq!(daemon.show().endpoints.len(), all);
    wait_until(PATIENCE, "the end point on the link is resolved", || resolved() == 1);
    let netlink = lab.hosts[0].netns.netlink();
    let far = "10.250.0.0/16".parse().expect("a prefix");
    let route = Route::via(far, lab.hosts[1].underlay(4));
    netlink.add_route(&route).expect("a route can be added");
    wait_until(PATIENCE, "all are resolved", || resolved() == all);
    netlink.delete_route(&route).expect("a route can be deleted");
    wait_until(PATIENCE, "those far away are not", || resolved() == 1);
    daemon.stop();
}

#[test]
fn nothing_is_left_behind_when_the_daemon_is_stopped_by_a_signal() {
    require_root!();
    for (tunnel, signal) in
        TUNNELS.into_iter().zip([Signal::SIGTERM, Signal::SIGINT].into_iter().cycle())
    {
        let lab = Lab::new(Setup::new(tunnel).guests(2, 1));
        let before = all_links(&lab);
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        assert_ne!(all_links(&lab), before, "there are TAPs");
        for mut daemon in daemons {
            daemon.signal(signal);
            let status = daemon.wait_end(PATIENCE);
            assert!(status.success(), "{tunnel}, {signal}: {status}");
        }
        assert_eq!(all_links(&lab), before, "{tunnel}, {signal}: links are left behind");
        for host in [0, 1] {
            assert!(!lab.control(host).exists(), "{tunnel}, {signal}: a socket is left behind");
        }
    }
}

#[test]
fn daemon_starts_at_once_after_it_was_killed() {
    require_root!();
    for tunnel in TUNNELS {
        let lab = Lab::new(Setup::new(tunnel));
        let [mut killed, other] = lab.start_both();
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        killed.signal(Signal::SIGKILL);
        killed.wait_end(PATIENCE);
        assert!(lab.control(0).exists(), "a killed daemon cannot clean up");
        let daemon = lab.start(0);
        traffic::ping(&a.netns, b.ip(4));
        traffic::tcp(a, b, 6, 1 << 16);
        traffic::tcp(b, a, 4, 1 << 16);
        daemon.stop();
        other.stop();
    }
}

/// Starts a daemon on `h1` that must fail with this exit code without creating anything. Returns
/// its standard error.
fn refused(lab: &Lab, code: i32) -> String {
    let before = all_links(lab);
    let control = lab.dir.path().join("refused.sock");
    let mut daemon = lab.spawn_at(0, &control);
    let status = daemon.wait_end(PATIENCE);
    let stderr = daemon.stderr();
    assert_eq!(status.code(), Some(code), "{stderr}");
    assert!(stderr.matches("os error").count() <= 1, "the cause is reported once: {stderr}");
    assert!(!control.exists(), "a socket is left behind");
    assert_eq!(all_links(lab), before, "links are left behind");
    stderr
}

/// Replaces the text `from` in the network file by `to`.
fn edit(lab: &Lab, from: &str, to: &str) {
    let text = fs::read_to_string(lab.network_file()).expect("the network file");
    assert!(text.contains(from), "{from} is not in\n{text}");
    fs::write(lab.network_file(), text.replace(from, to)).expect("a file can be written");
}

#[test]
fn second_daemon_is_refused_when_the_first_runs() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let daemons = lab.start_both();
    let mut second = lab.spawn(0);
    assert_eq!(second.wait_end(PATIENCE).code(), Some(1));
    let stderr = second.stderr();
    assert!(stderr.contains("a daemon is already running"), "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    // With another control socket, the second daemon must detect that the kernel datapath or the
    // tunnel port is in use.
    let stderr = refused(&lab, 1);
    let is_port_taken = stderr.contains("4789") && stderr.contains("in use");
    assert!(
        is_port_taken || stderr.contains("runs the kernel datapath of this network namespace"),
        "{stderr}"
    );
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn nothing_is_created_when_the_network_file_is_invalid() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    edit(&lab, "vni = 5001", "vni = 16777216");
    let stderr = refused(&lab, 2);
    let place = format!("{}:", lab.network_file().display());
    assert!(stderr.contains(&place) && stderr.contains("16777215"), "{stderr}");
    edit(&lab, "vni = 16777216", "vnii = 1");
    let stderr = refused(&lab, 2);
    assert!(stderr.contains("did you mean `vni`"), "{stderr}");
    edit(&lab, "vnii = 1", "vni = 1");
    edit(&lab, "name = \"h1\"", "name = \"h3\"");
    edit(&lab, "host = \"h1\"", "host = \"h3\"");
    let stderr = refused(&lab, 2);
    assert!(stderr.contains("no host \"h1\": use one of h3, h2"), "{stderr}");
    fs::remove_file(lab.network_file()).expect("the network file can be removed");
    let stderr = refused(&lab, 2);
    assert!(stderr.contains("network.toml"), "{stderr}");
}

#[test]
fn nothing_is_created_when_the_uplink_is_missing() {
    require_root!();
    for tunnel in TUNNELS {
        let lab = Lab::new(Setup::new(tunnel));
        edit(&lab, "uplink = \"eth0\"", "uplink = \"nope0\"");
        let stderr = refused(&lab, 1);
        assert!(stderr.contains("nope0"), "{tunnel}: {stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{tunnel}: {stderr}");
    }
}

#[test]
fn nothing_is_created_when_an_underlay_address_is_missing() {
    require_root!();
    for tunnel in ["vxlan", "geneve", "gre", "stt"] {
        let lab = Lab::new(Setup::new(tunnel));
        let own = lab.hosts[0].underlay(4).to_string();
        edit(&lab, &format!("\"{own}\""), "\"192.0.2.77\"");
        let stderr = refused(&lab, 1);
        assert!(stderr.contains("192.0.2.77"), "{tunnel}: {stderr}");
    }
}

#[test]
fn nothing_is_created_when_a_tunnel_port_is_in_use() {
    require_root!();
    for (tunnel, family, port) in [("vxlan", 4, 4789), ("vxlan", 6, 4789), ("geneve", 4, 6081)] {
        let lab = Lab::new(Setup::new(tunnel).family(family));
        let address = (lab.hosts[0].underlay(family), port);
        let _taken = lab.hosts[0].netns.run(|| UdpSocket::bind(address)).expect("a UDP socket");
        let stderr = refused(&lab, 1);
        assert!(stderr.contains(&port.to_string()) && stderr.contains("in use"), "{stderr}");
    }
    let lab = Lab::new(Setup::new("stt"));
    let address = (lab.hosts[0].underlay(4), 7471);
    let _taken = lab.hosts[0].netns.run(|| TcpListener::bind(address)).expect("a TCP socket");
    let stderr = refused(&lab, 1);
    assert!(stderr.contains("7471") && stderr.contains("in use"), "{stderr}");
}

/// Runs weft as a user without capabilities.
fn as_nobody(lab: &Lab, args: &[&str]) -> Output {
    const NOBODY: u32 = 65_534;
    // Other users may have no access to the build directory, so the program is copied.
    let program = lab.dir.path().join("weft");
    if !program.exists() {
        copy_program(WEFT, &program);
    }
    let mut command = Command::new(program);
    command.args(args).current_dir("/").uid(NOBODY).gid(NOBODY);
    command.output().expect("weft can be started")
}

#[test]
fn error_is_one_line_when_privileges_are_missing() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let before = all_links(&lab);
    let file = lab.network_file();
    let file = file.to_str().expect("a path of ASCII");
    // The default directory may contain files of another daemon, which root owns.
    let control = lab.dir.path().join("nobody.sock");
    let control = control.to_str().expect("a path of ASCII");
    let output = as_nobody(&lab, &["run", "--host", "h1", "--control", control, file]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "one sentence: {stderr}");
    assert!(stderr.contains("CAP_NET_ADMIN") && stderr.contains("as root"), "{stderr}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(all_links(&lab), before);
}

/// Commands that start `weft run` in a way that makes the kernel datapath impossible. Each has the
/// reason, and the words that precede it in the error message.
const WITHOUT_PROGRAMS: [(&[&str], &str, &str); 2] = [
    (
        &["setpriv", "--bounding-set", "-bpf,-sys_admin,-perfmon"],
        "CAP_BPF",
        "the switch of h1 lacks ",
    ),
    (
        &[
            "unshare",
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"",
            "sh",
        ],
        "the kernel has no BTF",
        "this host does not support the kernel datapath: ",
    ),
];

/// `weft run` on `h1`, started with the command `by`.
fn run_by(lab: &Lab, by: &[&str], datapath: &str) -> Command {
    let (program, arguments) = by.split_first().expect("a program");
    let mut command = lab.hosts[0].netns.program(program);
    command.args(arguments).args([WEFT, "run", "--host", "h1", "--datapath", datapath]);
    command.args(MEGAFLOWS).arg("--control").arg(lab.control(0)).arg(lab.network_file());
    command
}

#[test]
fn kernel_datapath_is_refused_with_the_reason_when_the_host_does_not_support_it() {
    require_root!();
    for (by, lacks, before_it) in WITHOUT_PROGRAMS {
        // The guests have veth pairs, because creating devices in other namespaces needs
        // CAP_SYS_ADMIN, which includes CAP_BPF.
        let lab = Lab::new(Setup::new("vxlan").mtu(1400).attachment(Attachment::Veth));
        let before = all_links(&lab);
        let output = run_by(&lab, by, "kernel").output().expect("it can be started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let sentence = stderr.trim_end().lines().last().expect("it says something");
        assert!(sentence.contains(&format!("{before_it}{lacks}")), "{stderr}");
        assert_eq!(all_links(&lab), before, "links are left behind");
    }
}

#[test]
fn user_datapath_is_used_with_the_reason_when_the_host_does_not_support_programs() {
    require_root!();
    for (by, lacks, _) in WITHOUT_PROGRAMS {
        let lab = Lab::new(Setup::new("vxlan").mtu(1400).attachment(Attachment::Veth));
        let file = lab.dir.path().join("log");
        let mut command = run_by(&lab, by, "auto");
        command.stderr(fs::File::create(&file).expect("a file can be made"));
        let _guard = Guard(command.spawn().expect("it can be started"));
        let shown = || {
            let show = Command::new(WEFT).args(["show", "--control"]).arg(lab.control(0)).output();
            let show = show.expect("weft can be started");
            show.status.success().then(|| String::from_utf8_lossy(&show.stdout).into_owned())
        };
        let log = || fs::read_to_string(&file).expect("a text");
        wait_until(PATIENCE, &format!("the switch runs: {}", log()), || shown().is_some());
        let other = lab.start(1);
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        traffic::tcp(a, b, 4, 1 << 20);
        let shown = shown().expect("it runs");
        assert!(shown.contains("user datapath"), "{shown}");
        for text in [shown, log()] {
            let has = |line: &&str| {
                line.contains("does not support the kernel datapath: ") && line.contains(lacks)
            };
            assert!(text.lines().any(|line| has(&line)), "{lacks}: {text}");
        }
        other.stop();
    }
}

#[test]
fn show_names_the_datapath_and_the_reason() {
    require_root!();
    for (datapath, why) in [
        (Some(Datapath::User), "datapath: user (threads); requested with --datapath"),
        (
            Some(Datapath::Kernel),
            "datapath: kernel (eBPF), with threads for what the programs cannot do; \
             requested with --datapath",
        ),
        (None, "; this host supports it"),
    ] {
        let setup = Setup::new("vxlan");
        let lab = Lab::new(match datapath {
            Some(datapath) => setup.datapath(datapath),
            None => setup,
        });
        let daemon = lab.start(0);
        let show = Command::new(WEFT).args(["show", "--control"]).arg(lab.control(0)).output();
        let shown = String::from_utf8(show.expect("weft can be started").stdout).expect("UTF-8");
        assert!(shown.lines().any(|line| line.ends_with(why)), "{why:?} in {shown}");
        daemon.wait_says("datapath started");
        daemon.stop();
    }
}

#[test]
fn show_tells_how_to_start_a_daemon_when_none_runs() {
    let output = Command::new(WEFT).args(["show", "--control", "/nowhere/weft.sock"]).output();
    let output = output.expect("weft can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("/nowhere/weft.sock") && stderr.contains("weft run"), "{stderr}");
}

#[test]
fn daemon_stops_at_once_when_clients_are_slow() {
    require_root!();
    /// Shorter than the sum of the timeouts of all clients.
    const LIMIT: Duration = Duration::from_secs(2);
    let lab = Lab::new(Setup::new("vxlan"));
    let [mut daemon, other] = lab.start_both();
    let connect = || UnixStream::connect(lab.control(0)).expect("the daemon listens");
    let silent: Vec<_> = (0..2).map(|_| connect()).collect();
    let mut slow = connect();
    let trickle = std::thread::spawn(move || {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && slow.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    // A client that sends a request is still served.
    daemon.show();
    let late: Vec<_> = (0..10).map(|_| connect()).collect();
    daemon.signal(Signal::SIGTERM);
    let status = daemon.wait_end(LIMIT);
    assert!(status.success(), "{status}");
    assert!(!lab.control(0).exists(), "a socket is left behind");
    drop((silent, late));
    trickle.join().expect("a thread that only writes");
    other.stop();
}

/// Kills the child process when dropped, even if the test fails.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `weft run` on `h1` with a limit of open files, which the shell command `ulimit` sets with
/// `flag`.
fn limited(lab: &Lab, flag: &str, files: u32) -> Command {
    let mut command = lab.hosts[0].netns.program("sh");
    let script = format!("ulimit {flag} {files} && exec \"$@\"");
    command.args(["-c", &script, "sh", WEFT, "run", "--host", "h1"]).args(MEGAFLOWS);
    command.arg("--control").arg(lab.control(0)).arg(lab.network_file());
    command
}

#[test]
fn open_file_limit_is_raised_if_possible_and_reported_if_not() {
    require_root!();
    // Fewer files than Geneve needs for its source ports.
    const FILES: u32 = 48;
    let lab = Lab::new(Setup::new("geneve"));
    let before = all_links(&lab);
    let output = limited(&lab, "-n", FILES).output().expect("sh can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("open files") && stderr.contains(&FILES.to_string()), "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "one sentence: {stderr}");
    assert_eq!(all_links(&lab), before, "links are left behind");

    let mut guard = Guard(limited(&lab, "-Sn", FILES).spawn().expect("sh can be started"));
    let child = &mut guard.0;
    let mut ended = None;
    wait_until(PATIENCE, "the switch runs", || {
        ended = child.try_wait().expect("a child can be waited for");
        let show = Command::new(WEFT).args(["show", "--control"]).arg(lab.control(0)).output();
        ended.is_some() || show.is_ok_and(|output| output.status.success())
    });
    assert_eq!(ended, None, "it ended by itself");
    let pid = i32::try_from(child.id()).expect("a process number is positive");
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("a child can be sent a signal");
    wait_until(PATIENCE, "the switch ends", || {
        ended = child.try_wait().expect("a child can be waited for");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}
