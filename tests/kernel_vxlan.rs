//! The kernel's VXLAN on the other host.

mod common;
mod peers;

use common::{Attachment, Daemon, Lab, Setup, traffic};
use peers::{MTU, carry_wire_frames_between, guests_talk, kernel, nothing_was_refused};
use std::time::Duration;
use testkit::{report, require_root};

/// Both ends with or without outer UDP checksums.
#[derive(Clone, Copy, Debug)]
struct Checksums {
    weft: bool,
    kernel: bool,
}

fn start(family: u8, checksums: Checksums) -> (Lab, Daemon) {
    let options = format!("checksum = {}", checksums.weft);
    let lab = Lab::new(Setup::new("vxlan").family(family).mtu(MTU).options(&options));
    lab.ends().1.attach(&lab.hosts[1], MTU);
    kernel::attach(&lab, checksums.kernel);
    let daemon = lab.start(0);
    (lab, daemon)
}

fn guests_talk_over(family: u8, checksums: Checksums) {
    let (lab, daemon) = start(family, checksums);
    guests_talk(&lab);
    nothing_was_refused(&daemon);
    daemon.stop();
    let said = |on| if on { "with" } else { "without" };
    let (weft, kernel) = (said(checksums.weft), said(checksums.kernel));
    report::peer(
        "Linux kernel VXLAN",
        &format!("over IPv{family}, weft {weft} and kernel {kernel} outer UDP checksum"),
    );
}

#[test]
fn guests_talk_when_the_peer_is_kernel_vxlan_over_ipv4() {
    require_root!();
    for weft in [true, false] {
        for kernel in [true, false] {
            guests_talk_over(4, Checksums { weft, kernel });
        }
    }
}

#[test]
fn guests_talk_when_the_peer_is_kernel_vxlan_over_ipv6() {
    require_root!();
    for both in [true, false] {
        guests_talk_over(6, Checksums { weft: both, kernel: both });
    }
}

#[test]
fn guests_talk_when_the_wire_to_kernel_vxlan_has_no_offloads() {
    require_root!();
    for family in [4, 6] {
        let (lab, daemon) = start(family, Checksums { weft: true, kernel: true });
        carry_wire_frames_between(&lab.hosts);
        guests_talk(&lab);
        nothing_was_refused(&daemon);
        daemon.stop();
        let what = format!("over IPv{family}, every segment and checksum made by the sender");
        report::peer("Linux kernel VXLAN", &what);
    }
}

/// RFC 6936: over IPv6 both ends must have been told.
#[test]
fn nothing_is_delivered_when_only_one_end_accepts_zero_checksums_over_ipv6() {
    require_root!();
    for weft in [true, false] {
        let (lab, daemon) = start(6, Checksums { weft, kernel: !weft });
        let (near, far) = lab.ends();
        // Whoever pings, either the request or the answer has a checksum of zero.
        for (from, to) in [(near, far), (far, near)] {
            let answer = traffic::ping_within(&from.netns, to.ip(4), Duration::from_secs(1));
            assert!(answer.is_err(), "weft with checksums: {weft}; {} was answered", from.name);
        }
        daemon.stop();
    }
}

/// The kernel's super-packets arrive whole. A guest behind an interface of the host takes none longer than its MTU,
/// unless told how to cut it.
#[test]
fn guests_talk_when_weft_reaches_its_guest_by_an_interface() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan").mtu(MTU).attachment(Attachment::Veth));
    kernel::attach(&lab, true);
    let daemon = lab.start(0);
    guests_talk(&lab);
    nothing_was_refused(&daemon);
    daemon.stop();
    report::peer("Linux kernel VXLAN", "weft's guest behind a veth pair");
}
