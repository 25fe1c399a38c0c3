//! Tests `weft doctor` from the user's view: exit codes, output, and the path MTU between two
//! hosts.

use crate::common::{Daemon, Host};
use netdev::{IpNet, Route};
use serde_json::Value;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testkit::host::{TestHost, WireEnd, pair, wait_until};
use testkit::{require_program, require_root};

const LIMIT: Duration = Duration::from_secs(10);

/// Two hosts with a router between them.
struct Path {
    hosts: [Host; 2],
    router: TestHost,
    /// The router's ends toward the hosts.
    ends: [WireEnd; 2],
    folder: PathBuf,
}

impl Path {
    fn new(tunnel: &str) -> Self {
        let names = ["h1", "h2"];
        let router = TestHost::new("router");
        let ends_and_hosts = names.map(|name| {
            let netns = TestHost::new(name);
            let (uplink, end) = pair(&netns, &router);
            let everywhere = IpNet::new(IpAddr::from([0; 4]), 0).unwrap();
            netns.netlink().add_route(&Route::via(everywhere, end.ip4.into())).unwrap();
            (end, Host { name, netns, uplink })
        });
        router.sysctl("net/ipv4/ip_forward", "1").unwrap();
        router.sysctl("net/ipv4/icmp_ratelimit", "0").unwrap();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("weft-doctor-{}-{unique}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let [(end_a, a), (end_b, b)] = ends_and_hosts;
        let path = Self { hosts: [a, b], router, ends: [end_a, end_b], folder };
        std::fs::write(path.folder.join("network.toml"), path.network(tunnel)).unwrap();
        path
    }

    fn network(&self, tunnel: &str) -> String {
        let mut text = format!("tunnel = \"{tunnel}\"\n");
        for host in &self.hosts {
            text += &format!(
                "[[host]]\nname = \"{}\"\nuplink = \"{}\"\nunderlay = [\"{}\"]\n",
                host.name, host.uplink.name, host.uplink.ip4
            );
        }
        text += "[[logical_switch]]\nname = \"blue\"\nvni = 7\n";
        for (number, host) in (1..).zip(&self.hosts) {
            text += &format!(
                "[[logical_switch.port]]\nname = \"p{number}\"\nhost = \"{}\"\n\
                 mac = \"02:00:00:00:00:0{number}\"\ndevice = {{ tap = \"tap0\" }}\n",
                host.name
            );
        }
        text
    }

    fn control(&self, host: usize) -> PathBuf {
        self.folder.join(format!("{}.sock", self.hosts[host].name))
    }

    fn start(&self, host: usize) -> Daemon {
        let network = self.folder.join("network.toml");
        let daemon = Daemon::spawn(&self.hosts[host], &network, &self.control(host), &[]);
        daemon.wait_ready();
        daemon
    }

    fn sh(&self, command: &str) {
        let mut shell = self.router.program("sh");
        let output = shell.args(["-c", command]).stdin(Stdio::null()).output().expect("sh");
        assert!(output.status.success(), "{command}: {output:?}");
    }

    /// The report of `weft doctor --path h2` on `h1`, and its exit code.
    fn ask(&self) -> (Value, i32) {
        let begun = Instant::now();
        let mut command = self.hosts[0].netns.program(crate::common::daemon::WEFT);
        command.args(["doctor", "--path", "h2", "--json", "--control"]).arg(self.control(0));
        let output = command.output().expect("weft can be started");
        assert!(begun.elapsed() < LIMIT, "it took {:?}", begun.elapsed());
        (json(&output), output.status.code().expect("an exit code"))
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        // Errors are ignored: the files are only temporary.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The observed value of each finding that is worse than PASS.
fn wrong(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().expect("findings").iter();
    findings.filter(|f| f["level"] != "pass").map(|f| f["seen"].as_str().unwrap()).collect()
}

#[test]
fn small_path_mtu_is_found_with_and_without_icmp() {
    require_root!();
    require_program!("nft", "nftables");
    for tunnel in ["geneve", "vxlan", "gre", "stt"] {
        let path = Path::new(tunnel);
        let daemons = [path.start(0), path.start(1)];
        let mut report = path.ask();
        // STT does not work before the kernel has resolved the router's address.
        wait_until(LIMIT, "the path is in order", || {
            report = path.ask();
            report.1 == 0
        });
        assert_eq!(wrong(&report.0), Vec::<&str>::new(), "{tunnel}: {report:?}");

        // Sets a small MTU toward h2; at first the router sends no ICMP.
        let [near, far] = &path.ends;
        let narrow = |mtu: u32| {
            let network = IpNet::new(far.ip4.into(), 24).unwrap();
            format!("ip route replace {} dev {} mtu {mtu}", network.trunc(), far.name)
        };
        path.sh("nft add table inet f; \
             nft add chain inet f o '{ type filter hook output priority 0; }'");
        path.sh("nft add rule inet f o icmp type destination-unreachable drop");
        path.sh(&narrow(1404));
        let (report, code) = path.ask();
        let seen = wrong(&report);
        assert_eq!((seen.len(), code), (1, 2), "{tunnel}: {report:#}");
        assert!(
            seen[0].starts_with("toward h2: packets up to 1404 bytes arrive"),
            "{tunnel}: {seen:?}"
        );
        assert!(seen[0].ends_with("no router reports it: an MTU black hole"), "{tunnel}: {seen:?}");

        path.sh("nft flush ruleset");
        let (mut report, mut code) = path.ask();
        if tunnel == "stt" {
            // The first packet that is too long is lost. Later packets are resegmented.
            wait_until(LIMIT, "packets are resegmented", || {
                (report, code) = path.ask();
                code == 0
            });
            let part = "toward h2: packets for 1500 bytes arrive, resegmented to the path MTU 1404";
            assert!(report.to_string().contains(part), "{report:#}");
            daemons.into_iter().for_each(Daemon::stop);
            continue;
        }
        let seen = wrong(&report);
        assert_eq!((seen.len(), code), (1, 2), "{tunnel}: {report:#}");
        let part = format!("{} reports a next-hop MTU of 1404", near.ip4);
        assert!(
            seen[0].starts_with("toward h2: packets up to 1404 bytes arrive"),
            "{tunnel}: {seen:?}"
        );
        assert!(seen[0].ends_with(&part), "{tunnel}: {seen:?}");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn small_path_mtu_on_the_way_back_is_found() {
    require_root!();
    let path = Path::new("geneve");
    let daemons = [path.start(0), path.start(1)];
    // The small MTU is behind the router, toward h1. The router reports it to h2.
    let [near, far] = &path.ends;
    let network = IpNet::new(near.ip4.into(), 24).unwrap().trunc();
    path.sh(&format!("ip route replace {network} dev {} mtu 1300", near.name));
    let (report, code) = path.ask();
    let seen = wrong(&report);
    assert_eq!((seen.len(), code), (1, 2), "{report:#}");
    assert!(seen[0].starts_with("from h2: packets up to 1300 bytes arrive"), "{seen:?}");
    assert!(seen[0].ends_with(&format!("{} reports a next-hop MTU of 1300", far.ip4)), "{seen:?}");
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn path_has_no_answer_when_no_daemon_runs_on_the_other_host() {
    require_root!();
    let path = Path::new("vxlan");
    let daemon = path.start(0);
    let (report, code) = path.ask();
    let seen = wrong(&report);
    assert_eq!((seen.len(), code), (1, 2), "{report:#}");
    assert!(seen[0].starts_with("no answer from"), "{seen:?}");
    let mut command = path.hosts[0].netns.program(crate::common::daemon::WEFT);
    command.args(["doctor", "--path", "h3", "--control"]).arg(path.control(0));
    let output = command.output().expect("weft can be started");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("use one of h2"), "{output:?}");
    daemon.stop();
}

#[test]
fn exit_code_is_that_of_the_worst_finding() {
    require_root!();
    let path = Path::new("vxlan");
    let host = &path.hosts[0];
    let doctor = |arguments: &[&str]| {
        let mut command = host.netns.program(crate::common::daemon::WEFT);
        command.arg("doctor").args(arguments).output().expect("weft can be started")
    };
    let network = path.folder.join("network.toml").display().to_string();
    let diagnose = || doctor(&["--host", "h1", "--json", &network]);
    // GRO of a veth is off by default, which is a warning.
    let output = diagnose();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = json(&output);
    assert!(wrong(&report).contains(&"rx-gro off"), "{report:#}");
    assert_eq!(report["nics"][0]["driver"], "veth");
    let daemon = path.start(0);
    let mut command = host.netns.program(crate::common::daemon::WEFT);
    let shown = command.args(["show", "--control"]).arg(path.control(0)).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let batches = "vxlan: UDP batches (UDP_SEGMENT); eth0 segments them: tx-udp-segmentation on";
    let whole = "vxlan: super-packets inside the outer headers; eth0 segments them: tx-udp_tnl-segmentation,";
    let by_programs = shown.contains("kernel datapath");
    assert!(shown.contains(if by_programs { whole } else { batches }), "{shown}");
    daemon.stop();
    host.netns.netlink().set_mtu(host.uplink.index, 1400).unwrap();
    assert_eq!(diagnose().status.code(), Some(2));
    let text = String::from_utf8(doctor(&["--host", "h1", &network]).stdout).unwrap();
    assert!(
        text.contains("FAIL mtu_uplink blue: MTU 1400 of eth0, needed at least 1500"),
        "{text}"
    );
    assert!(text.contains("     fix:  ip link set dev eth0 mtu 1500"), "{text}");
    let missing = doctor(&["--nic", "no-such-nic"]);
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
}

/// The place where a test sets an MTU that is too small.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Where {
    Near,
    Guest,
    Far,
    Router,
}

/// A place, the command that sets the wrong MTU, the command that sets the correct one, the check
/// that detects it, and a part of its finding.
const PLACES: &[(Where, &str, &str, &str, &str)] = &[
    (
        Where::Guest,
        "tap0 mtu 1300",
        "tap0 mtu 1442",
        "mtu_guest",
        "MTU 1300 of tap0, 1442 would fit",
    ),
    (
        Where::Guest,
        "tap0 mtu 1500",
        "tap0 mtu 1442",
        "mtu_guest",
        "MTU 1500 of tap0, needed at most 1442",
    ),
    (
        Where::Near,
        "tap0 mtu 1300",
        "tap0 mtu 1442",
        "mtu_vif",
        "MTU 1300 of tap0, needed at least 1442",
    ),
    (
        Where::Near,
        "eth0 mtu 1400",
        "eth0 mtu 1500",
        "path_mtu",
        "this host's uplink eth0 has MTU 1400",
    ),
    (
        Where::Far,
        "eth0 mtu 1400",
        "eth0 mtu 1500",
        "path_mtu",
        "the uplink eth0 of h2 has MTU 1400",
    ),
    (Where::Far, "tap0 mtu 1300", "tap0 mtu 1442", "mtu_remote", "a guest interface there"),
    (Where::Router, "eth1 mtu 1400", "eth1 mtu 1500", "path_mtu", "toward h2: packets up to 14"),
];

#[test]
fn wrong_mtu_gives_one_finding_at_each_of_the_five_points() {
    require_root!();
    require_program!("nft", "nftables");
    let path = Path::new("geneve");
    let guest = TestHost::new("guest");
    let red = format!(
        "[[logical_switch]]\nname = \"red\"\nvni = 8\n\
         [[logical_switch.port]]\nname = \"p3\"\nhost = \"h1\"\nmac = \"02:00:00:00:00:03\"\n\
         device = {{ tap = \"tap0\", netns = \"{}\" }}\n\
         [[logical_switch.port]]\nname = \"p4\"\nhost = \"h2\"\nmac = \"02:00:00:00:00:04\"\n\
         device = {{ tap = \"tap1\" }}\n",
        *guest
    );
    std::fs::write(path.folder.join("network.toml"), path.network("geneve") + &red).unwrap();
    let daemons = [path.start(0), path.start(1)];
    let set = |place: Where, link: &str| {
        let on = match place {
            Where::Near => &path.hosts[0].netns,
            Where::Guest => &guest,
            Where::Far => &path.hosts[1].netns,
            Where::Router => &path.router,
        };
        let (name, mtu) = link.split_once(" mtu ").expect("a link and its MTU");
        let netlink = on.netlink();
        netlink.set_mtu(netlink.index_of(name).unwrap(), mtu.parse().unwrap()).unwrap();
    };
    let clean = || wait_until(LIMIT, "nothing is wrong", || path.ask().1 == 0);
    clean();
    path.sh(
        "nft add table inet f; nft add chain inet f o '{ type filter hook output priority 0; }'",
    );
    path.sh("nft add rule inet f o icmp type destination-unreachable drop");
    for icmp in [false, true] {
        if icmp {
            path.sh("nft flush ruleset");
        }
        for (place, narrow, right, check, part) in PLACES {
            set(*place, narrow);
            // The other host's daemon reads its MTUs once per second.
            let mut report = Value::Null;
            wait_until(LIMIT, &format!("{place:?} {narrow}, ICMP {icmp}: {part}"), || {
                report = path.ask().0;
                wrong(&report).iter().any(|seen| seen.contains(part))
            });
            let findings = report["findings"].as_array().unwrap().iter();
            let named = findings.filter(|f| f["level"] != "pass").all(|f| f["check"] == *check);
            assert!(named, "{place:?} {narrow}, ICMP {icmp}: {report:#}");
            set(*place, right);
            // The kernel keeps a path MTU that a router reported for ten minutes.
            if !(icmp && *place == Where::Router) {
                clean();
            }
        }
    }
    daemons.into_iter().for_each(Daemon::stop);
}
