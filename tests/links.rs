//! Tests weft while network devices or their MTUs change: the uplink and the interfaces of guests
//! are removed, recreated or set down. The daemon must report the state and recover by itself.

use crate::common::daemon::{no_answer, port, wait_port};
use crate::common::{
    Attachment, Daemon, GUEST_DEVICE, Host, Lab, PATIENCE, Setup, TUNNELS, traffic,
};
use netdev::{LinkKind, LinkSpec, Monitor, NetlinkEvent};
use nix::sys::signal::Signal;
use std::net::IpAddr;
use std::time::Duration;
use testkit::host::wait_until;
use testkit::{require_program, require_root};

/// A device without an Ethernet header, such as one of WireGuard, cannot be the uplink.
#[test]
fn daemon_ends_with_an_error_when_the_uplink_is_not_ethernet() {
    require_root!();
    require_program!("ip", "iproute2");
    let lab = Lab::new(Setup::new("vxlan"));
    let host = &lab.hosts[0];
    host.netns.netlink().set_name(host.uplink.index, "eth9").expect("it can be renamed");
    let mut ip = host.netns.program("ip");
    ip.args(["tuntap", "add", "mode", "tun", "name", &host.uplink.name]);
    assert!(ip.status().expect("ip can be started").success());
    let mut daemon = Daemon::spawn(host, &lab.network_file(), &lab.control(0), &[]);
    assert_eq!(daemon.wait_end(PATIENCE).code(), Some(1));
    let stderr = daemon.stderr();
    assert!(stderr.contains("the uplink eth0 is not an Ethernet device"), "{stderr}");
}

#[test]
fn guest_is_reachable_again_after_its_tap_was_deleted() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    let netlink = b.netns.netlink();
    netlink.delete(netlink.index_of(GUEST_DEVICE).expect("the TAP")).expect("it can be deleted");
    daemons[1].wait_says("has vanished");
    wait_port(&daemons[1], "g2", "up again", |port| port.state == "up");
    traffic::ping(&a.netns, b.ip(4));
    traffic::tcp(b, a, 6, 1 << 16);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn guest_is_reachable_again_after_its_interface_was_recreated() {
    require_root!();
    let lab = Lab::new(Setup::new("gre").attachment(Attachment::Veth).mtu(1400));
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    let netlink = b.netns.netlink();
    netlink.delete(netlink.index_of(GUEST_DEVICE).expect("the veth")).expect("it can be deleted");
    daemons[1].wait_says("has vanished");
    wait_port(&daemons[1], "g2", "down", |port| port.state != "up");
    no_answer(&a.netns, b.ip(4), &daemons);
    b.attach(&lab.hosts[1], 1400);
    wait_port(&daemons[1], "g2", "up again", |port| port.state == "up");
    traffic::ping(&a.netns, b.ip(4));
    traffic::tcp(b, a, 6, 1 << 16);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn guest_is_reachable_again_after_its_interface_was_down() {
    require_root!();
    for attachment in [Attachment::Tap, Attachment::Veth] {
        let lab = Lab::new(Setup::new("vxlan").attachment(attachment).mtu(1400));
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        let netlink = b.netns.netlink();
        let index = netlink.index_of(GUEST_DEVICE).expect("the guest's interface");
        netlink.set_down(index).expect("it can be set down");
        // With a TAP, the user datapath detects this only when it writes to the device.
        if attachment == Attachment::Veth || daemons[1].show().datapath == "kernel" {
            wait_port(&daemons[1], "g2", "down", |port| port.state != "up");
        }
        no_answer(&a.netns, b.ip(4), &daemons);
        let dropped = daemons[1].drops().get("port_down").copied();
        assert!(dropped > Some(0), "echo requests have no reason: {:?}", daemons[1].drops());
        netlink.set_up(index).expect("it can be set up");
        traffic::ping(&a.netns, b.ip(4));
        traffic::tcp(a, b, 4, 1 << 16);
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn guest_is_attached_when_its_device_name_becomes_free() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let guest = &lab.guests[1].netns;
    let peer = LinkSpec::new("other");
    let taken = LinkSpec::new(GUEST_DEVICE);
    let taken = guest.netlink().create(&taken, &LinkKind::Veth { peer }).expect("a veth pair");
    let events = lab.hosts[1].netns.monitor().expect("a monitor");
    let daemon = lab.spawn(1);
    daemon.wait_says("has a link of that name already");
    // After several attempts, the daemon must have logged the conflict only once and created no TAP
    // device.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(daemon.stderr().matches("port is down").count(), 1, "{}", daemon.stderr());
    assert!(port(&daemon, "g2").state.contains("of that name"), "{:?}", port(&daemon, "g2"));
    assert_eq!(taps_made(events), 0);
    guest.netlink().delete(taken).expect("a veth can be deleted");
    wait_port(&daemon, "g2", "up", |port| port.state == "up");
    let near = lab.start(0);
    traffic::ping(&lab.guests[0].netns, lab.guests[1].ip(4));
    daemon.stop();
    near.stop();
}

/// The number of TAP devices that weft has created and moved to a guest. Each move removes the
/// device from the host's namespace.
fn taps_made(mut events: Monitor) -> usize {
    let events = events.drain().expect("the events");
    let made = |event: &&NetlinkEvent| match event {
        NetlinkEvent::LinkRemoved { name, .. } => name.starts_with("weft"),
        _ => false,
    };
    events.iter().filter(made).count()
}

#[test]
fn port_is_down_when_its_interface_has_no_carrier() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan").attachment(Attachment::Veth).mtu(1400));
    let (a, b) = lab.ends();
    let netlink = b.netns.netlink();
    let index = netlink.index_of(GUEST_DEVICE).expect("the guest's interface");
    netlink.set_down(index).expect("it can be set down");
    let daemon = lab.spawn(1);
    daemon.wait_says("port is down: link is down");
    for round in 1..=2 {
        wait_port(&daemon, "g2", "down", |port| port.state == "down: link is down");
        netlink.set_up(index).expect("it can be set up");
        wait_port(&daemon, "g2", "up", |port| port.state == "up");
        // The log entry may be written after the state has changed.
        wait_until(PATIENCE, "both changes are in the log", || {
            let log = daemon.stderr();
            ["port is down", "port is up"].map(|what| log.matches(what).count()) == [round; 2]
        });
        netlink.set_down(index).expect("it can be set down");
    }
    netlink.set_up(index).expect("it can be set up");
    let near = lab.start(0);
    traffic::ping(&a.netns, b.ip(4));
    daemon.stop();
    near.stop();
}

#[test]
fn uplink_is_reported_down_when_it_is_down_from_the_start() {
    require_root!();
    let lab = Lab::new(Setup::new("vlan"));
    let (netlink, uplink) = (lab.hosts[0].netns.netlink(), &lab.hosts[0].uplink);
    netlink.set_down(uplink.index).expect("it can be set down");
    let daemons = [0, 1].map(|host| lab.start(host));
    for daemon in &daemons {
        daemon.wait_says("uplink is down");
        assert_eq!(daemon.show().uplink.state, "down");
    }
    netlink.set_up(uplink.index).expect("it can be set up");
    daemons.iter().for_each(|daemon| daemon.wait_says("uplink is up again"));
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn packets_are_counted_when_the_uplink_has_no_carrier() {
    /// How long to wait for a reply, which must not arrive.
    const LIMIT: Duration = Duration::from_millis(300);
    require_root!();
    for tunnel in ["vxlan", "gre", "stt", "vlan"] {
        let lab = Lab::new(Setup::new(tunnel));
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        let (far, wire_end) = (lab.hosts[1].netns.netlink(), &lab.hosts[1].uplink);
        far.set_down(wire_end.index).expect("it can be set down");
        daemons[0].wait_says("uplink is down");
        assert!(traffic::ping_within(&a.netns, b.ip(4), LIMIT).is_err(), "{tunnel}: an answer");
        wait_until(PATIENCE, "the echo request has a reason", || {
            daemons[0].drops().get("uplink_down").is_some_and(|&count| count > 0)
        });
        far.set_up(wire_end.index).expect("it can be set up");
        traffic::ping(&a.netns, b.ip(4));
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn devices_are_read_again_when_netlink_notifications_are_lost() {
    require_root!();
    let lab = Lab::new(Setup::new("stt").attachment(Attachment::Veth).mtu(1400));
    let daemons = lab.start_both();
    let (host, daemon) = (&lab.hosts[0], &daemons[0]);
    let uplink = |state: &str| {
        wait_until(PATIENCE, &format!("the uplink is {state}"), || {
            daemon.show().uplink.state == state
        });
    };
    let netlink = host.netns.netlink();
    let device = netlink.index_of(&lab.guests[0].host_device()).expect("the host's end");
    while_nothing_is_noticed(host, daemon, || {
        netlink.set_down(host.uplink.index).expect("it can be set down");
        netlink.set_down(device).expect("it can be set down");
    });
    uplink("down");
    wait_port(daemon, "g1", "down", |port| port.state == "down: link is down");
    while_nothing_is_noticed(host, daemon, || {
        netlink.set_up(host.uplink.index).expect("it can be set up");
        netlink.set_up(device).expect("it can be set up");
    });
    uplink("up");
    wait_port(daemon, "g1", "up", |port| port.state == "up");
    traffic::ping(&lab.guests[0].netns, lab.guests[1].ip(4));
    while_nothing_is_noticed(host, daemon, || {
        netlink.delete(host.uplink.index).expect("a link can be deleted");
    });
    uplink("gone");
    daemons.into_iter().for_each(Daemon::stop);
}

/// Runs `work` while the daemon is stopped by SIGSTOP and its netlink queue is full, so that it
/// loses notifications.
fn while_nothing_is_noticed(host: &Host, daemon: &Daemon, work: impl FnOnce()) {
    /// More changes than the 1 MiB queue can hold: a notification takes more than 1 kB.
    const MOST: u32 = 10_000;
    let netlink = host.netns.netlink();
    let lo = netlink.link("lo").expect("a loopback device");
    daemon.signal(Signal::SIGSTOP);
    let before = lost_notifications(host);
    let mut changes = 0;
    while lost_notifications(host) == before {
        assert!(changes < MOST, "{changes} notifications and none is lost");
        for mtu in [lo.mtu - 1, lo.mtu].repeat(25) {
            netlink.set_mtu(lo.index, mtu).expect("an MTU can be set");
            changes += 1;
        }
    }
    work();
    daemon.signal(Signal::SIGCONT);
}

/// The number of notifications that every netlink subscriber of a host has lost: the minimum over
/// all subscribers.
fn lost_notifications(host: &Host) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netlink");
    let text = host.netns.run(read).expect("the sockets can be read");
    let losses = text.lines().filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let [_, protocol, _, groups, _, _, _, _, drops, _] = columns[..] else { return None };
        let is_subscriber = protocol == "0" && groups != "00000000";
        is_subscriber.then(|| drops.parse::<u64>().expect("a number"))
    });
    losses.min().expect("the daemon has subscribed")
}

#[test]
fn uplink_mtu_is_reported_when_it_is_too_low() {
    require_root!();
    for (tunnel, right, low) in [("vxlan", 1500, 1499), ("vlan", 1454, 1453), ("qinq", 1458, 1457)]
    {
        let mut lab = Lab::new(Setup::new(tunnel).mtu(1450));
        let set = |lab: &Lab, mtu| {
            let uplink = lab.hosts[0].uplink.index;
            lab.hosts[0].netns.netlink().set_mtu(uplink, mtu).expect("an MTU can be set");
        };
        let warning = format!("MTU is {low} bytes, and the network file needs {right}");
        set(&lab, right);
        let daemon = lab.start(0);
        assert!(!daemon.stderr().contains("the uplink's MTU"), "{}", daemon.stderr());
        daemon.stop();
        set(&lab, low);
        let daemon = lab.start(0);
        daemon.wait_says(&warning);
        lab.hosts[0].netns.netlink().delete(lab.hosts[0].uplink.index).expect("it can be deleted");
        daemon.wait_says("uplink is gone");
        assert_eq!(daemon.stderr().matches(&warning).count(), 1, "{}", daemon.stderr());
        lab.join_again();
        daemon.wait_says("uplink is up again");
        set(&lab, low);
        wait_until(PATIENCE, "it is reported again", || {
            daemon.stderr().matches(&warning).count() == 2
        });
        daemon.stop();
    }
}

#[test]
fn guest_interface_mtu_is_reported_when_it_differs() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan").attachment(Attachment::Veth).mtu(1400).guests(2, 1));
    let netlink = lab.hosts[0].netns.netlink();
    let device = lab.guests[0].host_device();
    let index = netlink.index_of(&device).expect("the host's end");
    netlink.set_mtu(index, 1300).expect("an MTU can be set");
    let daemon = lab.start(0);
    daemon.wait_says(&format!(
        "MTU of {device} is 1300 bytes, that of its logical switch blue is 1400"
    ));
    assert_eq!(daemon.stderr().matches("the MTU of").count(), 1, "{}", daemon.stderr());
    daemon.stop();
}

/// Sets the uplink of `h1` down and up again. Meanwhile the other end of the veth pair has no
/// carrier.
fn uplink_comes_back(setup: Setup) {
    let lab = Lab::new(setup);
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    for host in &lab.hosts {
        // Without this sysctl, the kernel would remove the IPv6 addresses.
        let key = format!("net/ipv6/conf/{}/keep_addr_on_down", host.uplink.name);
        host.netns.sysctl(&key, "1").expect("a sysctl can be set");
    }
    let uplink = &lab.hosts[0].uplink;
    let before: u64 = port(&daemons[0], "g1").drops.values().sum();
    lab.hosts[0].netns.netlink().set_down(uplink.index).expect("it can be set down");
    for daemon in &daemons {
        daemon.wait_says("uplink is down");
        assert_eq!(daemon.show().uplink.state, "down");
    }
    no_answer(&a.netns, b.ip(4), &daemons);
    let lost = port(&daemons[0], "g1").drops;
    assert!(lost.values().sum::<u64>() > before, "undelivered packets are counted: {lost:?}");

    lab.hosts[0].netns.netlink().set_up(uplink.index).expect("it can be set up");
    daemons.iter().for_each(|daemon| daemon.wait_says("uplink is up again"));
    for family in [4, 6] {
        traffic::ping(&a.netns, b.ip(family));
        traffic::tcp(a, b, family, 1 << 16);
        traffic::tcp(b, a, family, 1 << 16);
    }
    assert_eq!(daemons[0].show().uplink.state, "up");
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn traffic_resumes_after_the_uplink_was_down() {
    require_root!();
    for tunnel in TUNNELS {
        uplink_comes_back(Setup::new(tunnel));
    }
}

#[test]
fn traffic_resumes_after_the_uplink_was_down_with_an_ipv6_underlay() {
    require_root!();
    for tunnel in ["vxlan", "geneve", "gre", "stt"] {
        uplink_comes_back(Setup::new(tunnel).family(6));
    }
}

#[test]
fn traffic_resumes_after_the_uplink_was_recreated() {
    require_root!();
    for tunnel in TUNNELS {
        let mut lab = Lab::new(Setup::new(tunnel));
        let daemons = lab.start_both();
        traffic::ping(&lab.guests[0].netns, lab.guests[1].ip(4));
        let old = lab.hosts[0].uplink.clone();
        lab.hosts[0].netns.netlink().delete(old.index).expect("a link can be deleted");
        for daemon in &daemons {
            daemon.wait_says("uplink is gone");
            assert_eq!(daemon.show().uplink.state, "gone");
        }
        let (a, b) = lab.ends();
        no_answer(&a.netns, b.ip(4), &daemons);
        lab.join_again();
        daemons.iter().for_each(|daemon| daemon.wait_says("uplink is up again"));
        assert_ne!(lab.hosts[0].uplink.index, old.index);
        let (a, b) = lab.ends();
        for family in [4, 6] {
            traffic::ping(&a.netns, b.ip(family));
            traffic::tcp(a, b, family, 1 << 16);
            traffic::tcp(b, a, family, 1 << 16);
        }
        assert_eq!(daemons[0].show().uplink.state, "up");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn traffic_resumes_when_a_recreated_uplink_gets_its_address_late() {
    require_root!();
    for tunnel in ["vxlan", "stt"] {
        let mut lab = Lab::new(Setup::new(tunnel));
        let daemons = lab.start_both();
        let uplink = lab.hosts[0].uplink.index;
        lab.hosts[0].netns.netlink().delete(uplink).expect("a link can be deleted");
        daemons.iter().for_each(|daemon| daemon.wait_says("uplink is gone"));
        lab.join_without_addresses();
        // By now the daemons have found the device, but cannot open sockets yet. Then the state of
        // the device changes.
        std::thread::sleep(Duration::from_millis(600));
        for host in &lab.hosts {
            let netlink = host.netns.netlink();
            netlink.set_down(host.uplink.index).expect("a link can be set down");
            netlink.set_up(host.uplink.index).expect("a link can be set up");
        }
        std::thread::sleep(Duration::from_millis(100));
        lab.add_addresses();
        daemons.iter().for_each(|daemon| daemon.wait_says("uplink is up again"));
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        traffic::tcp(b, a, 6, 1 << 16);
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// The daemon must join the multicast group again on a recreated uplink, and change groups on a
/// reload.
#[test]
fn broadcasts_arrive_through_a_group_after_the_uplink_or_the_group_changed() {
    require_root!();
    for (family, group, other) in [(4, "239.1.1.1", "239.1.1.2"), (6, "ff05::1:1", "ff05::1:2")] {
        let line = |group: &str| format!("group = \"{group}\"\n");
        let mut lab = Lab::new(Setup::new("vxlan").family(family).options(&line(group)));
        let daemons = lab.start_both();
        let both_hear = |lab: &Lab| {
            let (a, b) = lab.ends();
            traffic::broadcast(a, b);
            traffic::broadcast(b, a);
        };
        both_hear(&lab);
        let uplink = lab.hosts[0].uplink.index;
        lab.hosts[0].netns.netlink().delete(uplink).expect("a link can be deleted");
        daemons.iter().for_each(|daemon| daemon.wait_says("uplink is gone"));
        lab.join_again();
        daemons.iter().for_each(|daemon| daemon.wait_says("uplink is up again"));
        both_hear(&lab);
        let text = std::fs::read_to_string(lab.network_file()).expect("the network file");
        for (line_now, now) in [(line(other), vec![other]), (String::new(), vec![])] {
            let text = text.replace(&line(group), &line_now);
            std::fs::write(lab.network_file(), text).expect("a file can be written");
            for daemon in &daemons {
                daemon.signal(Signal::SIGHUP);
                wait_until(PATIENCE, "the group is another", || {
                    let ends = daemon.show().endpoints.into_iter().map(|end| end.remote);
                    let groups: Vec<_> = ends.filter(IpAddr::is_multicast).collect();
                    groups.iter().map(IpAddr::to_string).eq(now.iter().copied())
                });
            }
            both_hear(&lab);
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}
