//! Tests ICMP reports of path MTUs for tunnels. Anybody who can send packets to the uplink can
//! forge them, so forged reports must not stop a tunnel. A plausible report must be accepted.

use crate::common::daemon::WEFT;
use crate::common::frames::FrameSocket;
use crate::common::outer::{GRE, Outer, TCP, UDP};
use crate::common::{Daemon, Datapath, Lab, PATIENCE, Setup, traffic};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use testkit::host::wait_until;
use testkit::require_root;
use wire::checksum::Sum;

const MEGABYTE: usize = 1 << 20;
/// IP protocol numbers.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// The range of outer source ports of UDP tunnels and of STT.
const SOURCE_PORTS: std::ops::Range<u16> = 49_152..49_216;
/// IPv4 flags: "don't fragment".
const DF: u16 = 0x4000;
/// More bytes than any router quotes of the packet that it reports.
const QUOTED_BYTES: usize = 500;

/// The content of a report.
#[derive(Clone, Copy)]
struct Report {
    mtu: u16,
    /// The length of the quoted packet, as its IP header states it.
    quoted_len: u16,
    /// The IPv4 flags of the quoted packet.
    flags: u16,
    /// The number of quoted bytes after the IP header.
    transport_bytes: usize,
    /// True if the quoted packet's destination is not an end point.
    to_stranger: bool,
    /// The source port of the quoted packet, for UDP tunnels and STT.
    src_port: u16,
    /// The destination port of the quoted packet, for UDP tunnels and STT; 0 means that of the
    /// tunnel.
    dst_port: u16,
    /// The first two bytes of the quoted GRE header.
    gre_flags: u16,
}

/// The report of a router whose next link has an MTU of 1400, about a packet of 1500 bytes.
const GENUINE: Report = Report {
    mtu: 1400,
    quoted_len: 1500,
    flags: DF,
    transport_bytes: QUOTED_BYTES,
    to_stranger: false,
    src_port: 49_152,
    dst_port: 0,
    gre_flags: 0x2000,
};

/// Reports that weft must ignore, each with the reason, for a tunnel with or without ports.
fn forgeries(family: u8, has_ports: bool) -> Vec<(Report, &'static str)> {
    let mut all = vec![
        (Report { mtu: 552, ..GENUINE }, "below_least_path_mtu"),
        (Report { mtu: 300, ..GENUINE }, "below_least_path_mtu"),
        (Report { mtu: 68, ..GENUINE }, "below_least_path_mtu"),
        // A router before RFC 1191 reports no MTU. Then the next plateau below the quoted length is
        // used.
        (Report { mtu: 0, quoted_len: 600, ..GENUINE }, "below_least_path_mtu"),
        (Report { quoted_len: 1300, ..GENUINE }, "would_fit"),
        (Report { mtu: 1500, quoted_len: 9000, ..GENUINE }, "not_lower"),
        (Report { transport_bytes: 4, ..GENUINE }, "truncated_quote"),
        (Report { to_stranger: true, ..GENUINE }, "unknown_end_point"),
    ];
    if family == 4 {
        all.push((Report { flags: 0, ..GENUINE }, "may_fragment"));
    }
    if has_ports {
        all.push((Report { src_port: 49_151, ..GENUINE }, "wrong_source_port"));
        all.push((Report { dst_port: 53, ..GENUINE }, "wrong_tunnel"));
    } else {
        all.push((Report { gre_flags: 0, ..GENUINE }, "wrong_gre_header"));
    }
    all
}

/// The IP protocol and the destination port of a tunnel's packets.
fn carrier(tunnel: &str) -> (u8, u16) {
    match tunnel {
        "vxlan" => (UDP, 4789),
        "geneve" => (UDP, 6081),
        "stt" => (TCP, 7471),
        "gre" | "nvgre" => (GRE, 0),
        _ => panic!("{tunnel} has no outer IP header"),
    }
}

/// The addresses of a packet from the pretended router.
fn from_router(lab: &Lab) -> Outer {
    Outer::between(&lab.hosts[1], &lab.hosts[0], lab.family()).as_stranger()
}

/// A frame with an ICMP error for `h1` about a packet to `h2`.
fn frame(lab: &Lab, tunnel: &str, report: Report) -> Vec<u8> {
    let outer = from_router(lab);
    let quoted = quote(lab, tunnel, report);
    if lab.family() == 4 {
        let mut message = [&[3, 4, 0, 0, 0, 0][..], &report.mtu.to_be_bytes(), &quoted].concat();
        let checksum = Sum::of(&message).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        return outer.packet(ICMP, &message);
    }
    let mtu = u32::from(report.mtu).to_be_bytes();
    let mut message = [&[2, 0, 0, 0][..], &mtu, &quoted].concat();
    let checksum = outer.transport_sum(ICMPV6, &message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    outer.packet(ICMPV6, &message)
}

/// The start of a tunnel packet of `h1` to `h2`.
fn quote(lab: &Lab, tunnel: &str, report: Report) -> Vec<u8> {
    let mut outer = Outer::between(&lab.hosts[0], &lab.hosts[1], lab.family());
    if report.to_stranger {
        outer.dst = from_router(lab).src;
    }
    let (protocol, tunnel_port) = carrier(tunnel);
    let dst_port = if report.dst_port == 0 { tunnel_port } else { report.dst_port };
    let mut transport = if protocol == GRE {
        [report.gre_flags, 0x6558].map(u16::to_be_bytes).concat()
    } else {
        [report.src_port, dst_port].map(u16::to_be_bytes).concat()
    };
    transport.resize(QUOTED_BYTES, 0);
    transport.truncate(report.transport_bytes);
    let mut ip = outer.packet(protocol, &transport).split_off(14);
    if lab.family() == 4 {
        ip[2..4].copy_from_slice(&report.quoted_len.to_be_bytes());
        ip[6..8].copy_from_slice(&report.flags.to_be_bytes());
        ip.truncate(20 + transport.len());
    } else {
        ip[4..6].copy_from_slice(&(report.quoted_len - 40).to_be_bytes());
        ip.truncate(40 + transport.len());
    }
    ip
}

/// The ICMP frames for `report`, one for each source port that the quoted packet can have.
fn from_each_port(lab: &Lab, tunnel: &str, report: Report) -> Vec<Vec<u8>> {
    let is_ours = report.src_port == GENUINE.src_port;
    let ports = SOURCE_PORTS.map(|port| if is_ours { port } else { report.src_port });
    ports.map(|src_port| frame(lab, tunnel, Report { src_port, ..report })).collect()
}

/// The output of `weft COMMAND --json` on `h1`.
fn json(lab: &Lab, command: &str) -> Value {
    let mut weft = Command::new(WEFT);
    let output = weft.args([command, "--json", "--control"]).arg(lab.control(0)).output();
    serde_json::from_slice(&output.expect("weft can be started").stdout).expect("an object")
}

/// Sends every forged report for a tunnel type during a transfer, and then uses the tunnel again.
fn forged_reports_change_nothing(setup: Setup, tunnel: &str) {
    let lab = Lab::new(setup);
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    let before = [daemons[0].drops(), daemons[1].drops()];
    let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
    let forgeries = forgeries(lab.family(), carrier(tunnel).1 != 0);
    let frames: Vec<_> =
        forgeries.iter().map(|(report, _)| from_each_port(&lab, tunnel, *report)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for frames in &frames {
                frames.iter().for_each(|frame| wire.send(frame));
                // The kernel's queue for such messages is limited, so they are sent slowly.
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        traffic::tcp(a, b, 4, 20 * MEGABYTE);
    });
    for family in [4, 6] {
        traffic::ping(&a.netns, b.ip(family));
        [64, 1300, 4000].iter().for_each(|&len| traffic::udp_echo(a, b, family, len));
        traffic::tcp(a, b, family, 2 * MEGABYTE);
    }
    assert_eq!([daemons[0].drops(), daemons[1].drops()], before, "something was dropped");
    let show = json(&lab, "show");
    assert_eq!(show["endpoints"][0]["path_mtu"], 1500);
    let reports = &show["uplink"]["path_mtu_reports"];
    assert_eq!(reports["believed"], 0);
    for (_, reason) in forgeries {
        assert!(reports["ignored"][reason].as_u64() > Some(0), "{reason}: {reports}");
        if reason != "not_lower" {
            daemons[0].wait_says("ignored an ICMP report of a path MTU");
        }
    }
    daemons.into_iter().for_each(Daemon::stop);
}

/// Sends a plausible report, and checks that the tunnel and its guests use the reported MTU.
fn plausible_report_is_believed(setup: Setup, tunnel: &str) {
    let lab = Lab::new(setup);
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
    wire.send(&frame(&lab, tunnel, GENUINE));
    wait_until(PATIENCE, "the report is believed", || {
        json(&lab, "show")["endpoints"][0]["path_mtu"] == 1400
    });
    for command in ["show", "tunnels"] {
        let shown = json(&lab, command);
        let report = &shown["endpoints"][0]["path_mtu_report"];
        assert_eq!(report["mtu"], 1400);
        assert_eq!(report["router"], from_router(&lab).src.to_string());
        assert!(report["age_s"].as_u64() < Some(60), "{report}");
    }
    // STT segments frames itself, so its guests need not learn the path MTU.
    if tunnel != "stt" {
        for family in [4, 6] {
            let socket = traffic::udp_socket(a, family);
            let mtu = || a.netns.netlink().route_get(b.ip(family), None).expect("a route").mtu;
            wait_until(PATIENCE, "the guest learns the path MTU", || {
                // Sending fails when the guest has learned the path MTU.
                let _ = socket.send_to(&[0; 1380], (b.ip(family), 9));
                (1280..1400).contains(&mtu())
            });
        }
    }
    for family in [4, 6] {
        traffic::ping(&a.netns, b.ip(family));
        traffic::tcp(a, b, family, 2 * MEGABYTE);
        [64, 1200, 4000].iter().for_each(|&len| traffic::udp_echo(a, b, family, len));
    }
    daemons.into_iter().for_each(Daemon::stop);
}

/// Defines a test for each listed tunnel type, family and datapath; each calls `$check`.
macro_rules! tests {
    ($check:ident: $($name:ident: $tunnel:literal $family:literal $datapath:ident;)*) => {
        $(
            #[test]
            fn $name() {
                require_root!();
                let setup = Setup::new($tunnel).family($family).datapath(Datapath::$datapath);
                $check(setup, $tunnel);
            }
        )*
    };
}

tests! {
    forged_reports_change_nothing:
    vxlan_continues_after_forged_reports_when_user: "vxlan" 4 User;
    vxlan_continues_after_forged_reports_when_kernel: "vxlan" 4 Kernel;
    vxlan_continues_after_forged_reports_when_user_over_ipv6: "vxlan" 6 User;
    vxlan_continues_after_forged_reports_when_kernel_over_ipv6: "vxlan" 6 Kernel;
    geneve_continues_after_forged_reports_when_user: "geneve" 4 User;
    geneve_continues_after_forged_reports_when_kernel: "geneve" 4 Kernel;
    gre_continues_after_forged_reports_when_user: "gre" 4 User;
    gre_continues_after_forged_reports_when_kernel: "gre" 4 Kernel;
    nvgre_continues_after_forged_reports_when_user: "nvgre" 4 User;
    nvgre_continues_after_forged_reports_when_kernel: "nvgre" 4 Kernel;
    stt_continues_after_forged_reports_when_user: "stt" 4 User;
    stt_continues_after_forged_reports_when_kernel: "stt" 4 Kernel;
}

tests! {
    plausible_report_is_believed:
    vxlan_follows_a_plausible_report_when_user: "vxlan" 4 User;
    vxlan_follows_a_plausible_report_when_kernel: "vxlan" 4 Kernel;
    geneve_follows_a_plausible_report_when_user_over_ipv6: "geneve" 6 User;
    geneve_follows_a_plausible_report_when_kernel_over_ipv6: "geneve" 6 Kernel;
    gre_follows_a_plausible_report_when_user: "gre" 4 User;
    gre_follows_a_plausible_report_when_kernel: "gre" 4 Kernel;
    stt_follows_a_plausible_report_when_user: "stt" 4 User;
    stt_follows_a_plausible_report_when_kernel: "stt" 4 Kernel;
}

#[test]
fn ipv6_guests_continue_when_the_tunnel_carries_less_than_1280() {
    require_root!();
    for datapath in Datapath::BOTH {
        let lab = Lab::new(Setup::new("vxlan").datapath(datapath));
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(6));
        let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
        wire.send(&frame(&lab, "vxlan", Report { mtu: 1280, ..GENUINE }));
        wait_until(PATIENCE, "the report is believed", || {
            json(&lab, "show")["endpoints"][0]["path_mtu"] == 1280
        });
        // 1232 bytes of payload make an IPv6 packet of 1280 bytes, the minimum MTU of IPv6. By the
        // reported MTU, the tunnel carries only 1230 bytes.
        [64, 1182, 1183, 1232].iter().for_each(|&len| traffic::udp_echo(a, b, 6, len));
        traffic::tcp(a, b, 6, 2 * MEGABYTE);
        traffic::tcp(a, b, 4, 2 * MEGABYTE);
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn forged_report_ends_when_a_probe_of_the_configured_length_arrives() {
    require_root!();
    for datapath in Datapath::BOTH {
        let lab = Lab::new(Setup::new("vxlan").datapath(datapath));
        let text = std::fs::read_to_string(lab.network_file()).expect("a network file");
        let text = format!("path_probes = true\n{text}");
        std::fs::write(lab.network_file(), text).expect("a file can be written");
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
        wire.send(&frame(&lab, "vxlan", GENUINE));
        let socket = traffic::udp_socket(a, 4);
        wait_until(PATIENCE, "the report is believed, and then no more", || {
            // Only a tunnel that guests use gets probes.
            let _ = socket.send_to(&[0; 64], (b.ip(4), 9));
            let show = json(&lab, "show");
            show["uplink"]["path_mtu_reports"]["believed"] == 1
                && show["endpoints"][0]["path_mtu"] == 1500
        });
        daemons[0].wait_says("the path carries its MTU again");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn least_path_mtu_decides_what_is_believed_and_a_reload_changes_it() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let path_mtu = || json(&lab, "show")["endpoints"][0]["path_mtu"].as_u64();
    let least = |least: u16| {
        move |text: String| text.replacen('\n', &format!("\nleast_path_mtu = {least}\n"), 1)
    };
    let original = std::fs::read_to_string(lab.network_file()).expect("a network file");
    let reload = |text: String| {
        std::fs::write(lab.network_file(), text).expect("a file can be written");
        let mut weft = Command::new(WEFT);
        weft.arg("reload").arg("--control").arg(lab.control(0)).arg(lab.network_file());
        let output = weft.output().expect("weft can be started");
        assert!(output.status.success(), "{output:?}");
    };
    let daemons = lab.start_both();
    let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
    reload(least(576)(original.clone()));
    wire.send(&frame(&lab, "vxlan", Report { mtu: 700, ..GENUINE }));
    wait_until(PATIENCE, "the report is believed", || path_mtu() == Some(700));
    reload(least(1500)(original.clone()));
    assert_eq!(path_mtu(), Some(1500), "it is below the new least path MTU");
    wire.send(&frame(&lab, "vxlan", GENUINE));
    wait_until(PATIENCE, "the report is ignored", || {
        let ignored = &json(&lab, "tunnels")["path_mtu_reports"]["ignored"];
        ignored["below_least_path_mtu"].as_u64() > Some(0)
    });
    assert_eq!(path_mtu(), Some(1500));
    // The setting of a host takes precedence over that of the network.
    let of_host =
        |text: String| text.replacen("[[host]]\n", "[[host]]\nleast_path_mtu = 1400\n", 1);
    reload(of_host(least(1500)(original.clone())));
    wire.send(&frame(&lab, "vxlan", GENUINE));
    wait_until(PATIENCE, "the report is believed", || path_mtu() == Some(1400));
    daemons.into_iter().for_each(Daemon::stop);
}
