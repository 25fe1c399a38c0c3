//! Tests the memory use of a daemon. A benchmark measures the memory of large numbers of end
//! points.

use crate::common::{Daemon, Datapath, Lab, PATIENCE, Setup, TUNNELS, traffic};
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use testkit::host::wait_until;
use testkit::require_root;

/// The limits in kB, with two ports and ten end points. The kernel datapath needs about 48 MB in a
/// test build, whose code is not optimized: 17 MB of code, compared with 8 MB in a release. It
/// includes the user datapath, and reads the kernel's BTF to load its eBPF programs.
const LIMITS_KB: [(Datapath, u64); 2] = [(Datapath::User, 32 << 10), (Datapath::Kernel, 56 << 10)];
const ENDPOINTS: u8 = 10;

#[test]
fn daemon_stays_within_its_memory_limit_with_two_ports_and_ten_end_points() {
    require_root!();
    for (tunnel, (datapath, limit_kb)) in
        TUNNELS.into_iter().flat_map(|t| LIMITS_KB.map(|l| (t, l)))
    {
        let lab = Lab::new(Setup::new(tunnel).guests(2, 1).datapath(datapath));
        add_hosts(&lab);
        let daemons = [0, 1].map(|host| lab.start(host));
        let [a, b, c] = &lab.guests[..] else { panic!("there are three guests") };
        traffic::ping(&a.netns, c.ip(4));
        traffic::tcp(a, c, 4, 4 << 20);
        traffic::tcp(c, b, 6, 4 << 20);
        [1, 1400, 60_000].into_iter().for_each(|len| traffic::udp_echo(b, c, 4, len));
        if !matches!(tunnel, "vlan" | "qinq") {
            let count = usize::from(ENDPOINTS);
            wait_until(PATIENCE, "all end points", || daemons[0].show().endpoints.len() == count);
        }
        assert_eq!(daemons[0].show().ports.len(), 2);
        let (now, most) = resident_kb(&daemons[0]);
        let what = format!("{tunnel}, {} datapath", datapath.name());
        println!("{what}: {now} kB resident, {most} kB at most");
        assert!(most < limit_kb, "{what}: {most} kB were resident");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// Adds hosts to the network file that do not exist. Each has a port of the logical switch.
fn add_hosts(lab: &Lab) {
    let mut text = fs::read_to_string(lab.network_file()).expect("the network file");
    let network = u32::from(lab.hosts[0].uplink.ip4) & !0xff;
    // `h1` and `h2` are hosts of the lab.
    for number in 3..3 + ENDPOINTS - 1 {
        let address = Ipv4Addr::from(network + 100 + u32::from(number));
        write!(
            text,
            "[[logical_switch.port]]\nname = \"far{number}\"\nhost = \"h{number}\"\n\
             mac = \"02:00:00:00:01:{number:02x}\"\ndevice = {{ tap = \"far\" }}\n\
             [[host]]\nname = \"h{number}\"\nuplink = \"eth0\"\nunderlay = [\"{address}\"]\n"
        )
        .expect("a String takes all");
    }
    fs::write(lab.network_file(), text).expect("a file can be written");
}

/// Current and peak resident memory in kB.
fn resident_kb(daemon: &Daemon) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("a process");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
    };
    (field("VmRSS:"), field("VmHWM:"))
}
