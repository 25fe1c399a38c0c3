//! Tests meters of an OVN for control plane protection and for the log records of ACLs.

use super::{Hosts, lab_of, switch};
use crate::common::frames::FrameSocket;
use crate::common::{Daemon, GUEST_DEVICE, Guest, PATIENCE, traffic};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;
use testkit::host::wait_until;
use testkit::ovn::Ovn;
use wire::{EthernetPacket, Ipv4Packet, Protocol};

/// The number of datagrams in a burst.
const DATAGRAMS: usize = 40;

/// Sends a burst of datagrams. Returns the number of ICMP errors that the guest receives for them.
fn refusals(from: &Guest, to: &Guest) -> usize {
    let socket = FrameSocket::open(&from.netns, GUEST_DEVICE);
    let own = from.ip(4);
    let sender = from.netns.run(|| UdpSocket::bind((own, 0))).expect("a UDP socket");
    for _ in 0..DATAGRAMS {
        // Sending may report an error about an earlier datagram.
        let _ = sender.send_to(b"x", SocketAddr::new(to.ip(4), 9));
    }
    std::thread::sleep(Duration::from_millis(700));
    let frames = socket.pending();
    let is_error = |frame: &&Vec<u8>| {
        let Ok(ethernet) = EthernetPacket::new_checked(&frame[..]) else { return false };
        let Ok(ip) = Ipv4Packet::new_checked(ethernet.payload()) else { return false };
        ip.protocol() == Protocol::ICMP && ethernet.dst() == from.mac
    };
    frames.iter().filter(is_error).count()
}

#[test]
fn rejections_are_limited_when_ovn_meters_them() {
    require_ovn!();
    let lab = lab_of(2, 0);
    let ovn = Ovn::start("metered");
    let (near, far) = (&lab.guests[0], &lab.guests[1]);
    ovn.configure(&switch("blue", &[near, far]));
    ovn.nbctl("acl-add blue from-lport 1000 'udp.dst == 9' reject");
    let database = super::LocalDatabase::start(&lab, &ovn, 0);
    let daemon = super::join(&lab, &database);
    daemon.wait_answers();
    [near, far].into_iter().for_each(|guest| database.add_port(guest));
    super::wait_up(&lab, &ovn);
    traffic::ping(&near.netns, far.ip(4));
    assert_eq!(refusals(near, far), DATAGRAMS);
    ovn.configure(&[
        "meter-add slow drop 1 pktps 5".to_owned(),
        "copp-add limits reject slow".to_owned(),
        "ls-copp-add limits blue".to_owned(),
    ]);
    ovn.nbctl("--wait=hv sync");
    // The burst of the meter, and a few more for the time that the test takes.
    let limited = refusals(near, far);
    assert!((5..=8).contains(&limited), "{limited}");
    assert!(daemon.drops().contains_key("meter"), "{:?}", daemon.drops());
    ovn.nbctl("--may-exist meter-add slow drop 1 pktps 20");
    ovn.nbctl("--wait=hv sync");
    let limited = refusals(near, far);
    assert!((20..=23).contains(&limited), "{limited}");
    ovn.nbctl("--wait=hv copp-del limits reject");
    assert_eq!(refusals(near, far), DATAGRAMS);
    daemon.stop();
}

/// Records of the ACL `name` in the log.
fn records(daemon: &Daemon, name: &str) -> usize {
    daemon.stderr().matches(&format!("name=\"{name}\", verdict=")).count()
}

/// Sends datagrams to ports 9 and 10 at once. Returns how many records the ACLs `a` and `b` write.
fn logged(daemon: &Daemon, from: &Guest, to: &Guest) -> [usize; 2] {
    let count = || ["a", "b"].map(|name| records(daemon, name));
    let suppressed = || daemon.show().log.over_rate as usize;
    let (before, suppressed_before) = (count(), suppressed());
    let own = from.ip(4);
    let sender = from.netns.run(|| UdpSocket::bind((own, 0))).expect("a UDP socket");
    for _ in 0..DATAGRAMS {
        for port in [9, 10] {
            sender.send_to(b"x", SocketAddr::new(to.ip(4), port)).expect("it is sent");
        }
    }
    let written = || {
        let now = count();
        [0, 1].map(|acl| now[acl] - before[acl])
    };
    wait_until(PATIENCE, "all datagrams are logged or counted", || {
        written().iter().sum::<usize>() + suppressed() - suppressed_before == 2 * DATAGRAMS
    });
    written()
}

#[test]
fn acl_records_are_limited_by_the_meter_that_the_acl_names() {
    require_ovn!();
    let lab = lab_of(2, 0);
    let ovn = Ovn::start("log-metered");
    let (near, far) = (&lab.guests[0], &lab.guests[1]);
    ovn.configure(&switch("blue", &[near, far]));
    let acl = |name: &str, port: u16| {
        format!(
            "--log --name={name} --meter=few acl-add blue from-lport 5 'udp.dst == {port}' drop"
        )
    };
    ovn.configure(&[acl("a", 9), acl("b", 10)]);
    let database = super::LocalDatabase::start(&lab, &ovn, 0);
    let daemon = super::join(&lab, &database);
    daemon.wait_answers();
    [near, far].into_iter().for_each(|guest| database.add_port(guest));
    super::wait_up(&lab, &ovn);
    traffic::ping(&near.netns, far.ip(4));
    // There is no such meter yet. A test takes up to a second.
    let [a, b] = logged(&daemon, near, far);
    assert!((20..=30).contains(&(a + b)), "{a} {b}");
    ovn.nbctl("meter-add few drop 1 pktps 3");
    ovn.nbctl("--wait=hv sync");
    let [a, b] = logged(&daemon, near, far);
    assert!((3..=6).contains(&(a + b)), "{a} {b}");
    // A datagram of one byte in an Ethernet frame has 344 bits.
    ovn.nbctl("--may-exist meter-add few drop 1 kbps 4");
    ovn.nbctl("--wait=hv sync");
    let [a, b] = logged(&daemon, near, far);
    assert!((11..=20).contains(&(a + b)), "{a} {b}");
    // northd makes a meter for each ACL.
    ovn.nbctl("--fair --may-exist meter-add few drop 1 pktps 3");
    ovn.nbctl("--wait=hv sync");
    for count in logged(&daemon, near, far) {
        assert!((3..=6).contains(&count), "{count}");
    }
    daemon.stop();
}

#[test]
fn acls_log_in_the_words_of_ovn_controller() {
    require_ovn!();
    let lab = lab_of(1, 1);
    let ovn = Ovn::start("logged");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    let condition = |port: &Guest| format!("port == \"{}\" && icmp4.type == 8", port.name);
    ovn.configure(&[
        format!(
            "--log --name=out --severity=notice acl-add blue from-lport 5 'in{}' allow",
            condition(near)
        ),
        format!("--log --severity=alert acl-add blue to-lport 5 'out{}' drop", condition(far)),
    ]);
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    assert!(super::is_silent(near, far.ip(4)));
    let (from, to) = (format!("dl_src={}", near.mac), format!("dl_dst={}", far.mac));
    let packet = format!(
        "icmp,vlan_tci=0x0000,{from},{to},nw_src={},nw_dst={},nw_tos=0,nw_ecn=0,nw_ttl=64,\
         nw_frag=no,icmp_type=8,icmp_code=0",
        near.ip4, far.ip4
    );
    for (daemon, record) in [
        (0, "name=\"out\", verdict=allow, severity=notice, direction=from-lport"),
        (1, "name=\"<unnamed>\", verdict=drop, severity=alert, direction=to-lport"),
    ] {
        hosts.daemons[daemon].wait_says(&format!("{record}: {packet}"));
    }
    hosts.stop(&ovn);
}
