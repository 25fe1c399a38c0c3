//! Outer UDP checksums of packets whose inner checksums are complete, sent between veth pairs:
//! frames that are too long for BPF_PROG_TEST_RUN, and frames with data in pages.

use crate::common::abi::WEFT_MAX_PLAIN_LEN;
use crate::common::frames::{tcp4, tcp6, udp4};
use crate::common::lab::{Lab, PATIENCE, Wire};
use crate::common::reference::reference;
use crate::common::switch::Switch;
use crate::common::tunnels::{self, Tunnel};
use flow::{
    Action, DatapathKey, LogicalPorts, PortKey, TunnelKey, TunnelSpec, TunnelType, extract,
};
use nix::sys::socket::{MsgFlags, send};
use packet::PacketBuf;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// The longest frame that a program encapsulates.
const LONGEST_PLAIN: usize = WEFT_MAX_PLAIN_LEN as usize;
const UDP_HEADERS: usize = 14 + 20 + 8;
/// More data follows for this datagram (`send(2)`). nix does not define it.
const MSG_MORE: MsgFlags = MsgFlags::from_bits_retain(0x8000);
const KEY: TunnelKey = TunnelKey { datapath: DatapathKey(5), ports: None };

fn add_tunnels(lab: &mut Lab) -> Vec<Tunnel> {
    let mut tunnels = Vec::new();
    for (local, remote) in [("192.0.2.1", "192.0.2.2"), ("fd01::1", "fd01::2")] {
        let [local, remote] = [local, remote].map(|text| text.parse().expect("an address"));
        let vxlan = tunnels::spec(TunnelType::Vxlan);
        let spec = TunnelSpec { checksum: true, path_mtu_bytes: 20_000, ..vxlan };
        let class = tunnels.len() as u16;
        tunnels.push(tunnels::add(&mut lab.switch, &spec, class, local, remote));
    }
    tunnels
}

fn expected(lab: &mut Lab, tunnel: &Tunnel, frame: &[u8]) -> Vec<u8> {
    let encap = [Action::Encap { endpoint: tunnel.id, key: KEY }];
    let leaves = reference(&encap, &PacketBuf::from_bytes(frame), &mut lab.switch.endpoints);
    leaves.frames.first().expect("it leaves").1.to_vec()
}

/// Adds a megaflow that sends the datagrams of [`udp4`] by a tunnel.
fn put(lab: &mut Lab, tunnel: &Tunnel) -> datapath_bpf::FlowNo {
    let key = extract(&PacketBuf::from_bytes(&udp4(&[])), Switch::VIF, None);
    let encap = [Action::Encap { endpoint: tunnel.id, key: KEY }];
    lab.switch.put(&key.expect("it is whole"), &encap, 0)
}

#[test]
fn outer_checksums_are_right_when_frames_are_as_long_as_programs_take() {
    testkit::require_root!();
    let mut lab = Lab::new();
    let noise: Vec<u8> = (0..20_000_u32).map(|at| (at * at / 7 + at) as u8).collect();
    for tunnel in add_tunnels(&mut lab) {
        let flow = put(&mut lab, &tunnel);
        let longest = LONGEST_PLAIN - UDP_HEADERS;
        for len in [0, 1, 2, 1472, 3000, 8971, 8972, 8973, longest - 1, longest] {
            let frame = udp4(&noise[..len]);
            lab.send(Wire::Vif, &PacketBuf::from_bytes(&frame));
            let (wire, seen) = lab.receive(PATIENCE).expect("it is not lost");
            assert_eq!(wire, Wire::Uplink, "{len}");
            assert!(seen.to_vec() == expected(&mut lab, &tunnel, &frame), "{len}: {tunnel:?}");
        }
        let long = PacketBuf::from_bytes(&udp4(&noise[..=longest]));
        lab.send(Wire::Vif, &long);
        assert_eq!(lab.receive(PATIENCE).expect("it is not lost").0, Wire::Punt);
        lab.switch.tables.delete(flow).expect("it is there");
    }
}

/// The sum of these frames is 0 or 0xffff, which must not be taken for "no checksum".
#[test]
fn outer_checksum_is_present_when_the_inner_sum_is_zero() {
    testkit::require_root!();
    let mut lab = Lab::new();
    for tunnel in add_tunnels(&mut lab) {
        for (ethertype, byte) in [(0x88b6_u16, 0), (0x88b6, 0xff), (0x0040, 0)] {
            let mut frame = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]].concat();
            frame.extend(ethertype.to_be_bytes());
            frame.resize(78, byte);
            let encap = [Action::Encap { endpoint: tunnel.id, key: KEY }];
            let packet = PacketBuf::from_bytes(&frame);
            let key = extract(&packet, Switch::VIF, None).expect("it is whole");
            let flow = lab.switch.put(&key, &encap, 0);
            lab.send(Wire::Vif, &packet);
            let (wire, seen) = lab.receive(PATIENCE).expect("it is not lost");
            assert_eq!(wire, Wire::Uplink);
            assert_eq!(seen.to_vec(), expected(&mut lab, &tunnel, &frame), "{tunnel:?}");
            lab.switch.tables.delete(flow).expect("it is there");
        }
    }
}

/// The length of the outer header that the checksum covers depends on options and tags.
#[test]
fn outer_checksums_are_right_with_every_option_and_number_of_tags() {
    testkit::require_root!();
    let mut lab = Lab::new();
    let mut tunnels = add_tunnels(&mut lab);
    for (local, remote) in [("192.0.2.1", "192.0.2.3"), ("fd01::1", "fd01::3")] {
        let [local, remote] = [local, remote].map(|text| text.parse().expect("an address"));
        let spec = TunnelSpec { checksum: true, ..tunnels::spec(TunnelType::Geneve) };
        let class = tunnels.len() as u16;
        tunnels.push(tunnels::add(&mut lab.switch, &spec, class, local, remote));
    }
    let ports = LogicalPorts { ingress: PortKey::new(1), egress: PortKey::new(2).unwrap() };
    for tunnel in tunnels {
        let has_option = tunnel.spec.tunnel == TunnelType::Geneve;
        for ports in [None, Some(ports)].into_iter().take(1 + usize::from(has_option)) {
            for tags in 0..=2 {
                for body in [tcp4(), tcp6(), udp4(&[7; 33]), with_pending_looking_checksum(tcp4())]
                {
                    let mut frame = body;
                    for tag in [[0x81, 0, 0, 5], [0x88, 0xa8, 0, 9]].iter().take(tags) {
                        frame.splice(12..12, *tag);
                    }
                    let key = TunnelKey { ports, ..KEY };
                    let encap = [Action::Encap { endpoint: tunnel.id, key }];
                    let packet = PacketBuf::from_bytes(&frame);
                    let key = extract(&packet, Switch::VIF, None).expect("it is whole");
                    let flow = lab.switch.put(&key, &encap, 0);
                    lab.send(Wire::Vif, &packet);
                    let (wire, seen) = lab.receive(PATIENCE).expect("it is not lost");
                    let what = format!("{tunnel:?}, {ports:?}, {tags} tags, {} bytes", frame.len());
                    assert_eq!(wire, Wire::Uplink, "{what}");
                    let leaves = reference(&encap, &packet, &mut lab.switch.endpoints);
                    let [(_, expected)] = &leaves.frames[..] else { panic!("one leaves: {what}") };
                    assert_eq!(seen.to_vec(), expected.to_vec(), "{what}");
                    lab.switch.tables.delete(flow).expect("it is there");
                }
            }
        }
    }
}

/// A frame that is not IP has no pending checksum, whatever its bytes look like.
#[test]
fn outer_checksums_are_right_when_a_frame_only_looks_like_ip() {
    testkit::require_root!();
    let mut lab = Lab::new();
    for tunnel in add_tunnels(&mut lab) {
        for mut frame in [tcp4(), udp4(&[7; 64])] {
            // The field looks like a pending checksum, but the payload does not match it.
            frame = with_pending_looking_checksum(frame);
            let last = frame.len() - 1;
            frame[last] ^= 0xff;
            frame[12..14].copy_from_slice(&0x88b6_u16.to_be_bytes());
            let encap = [Action::Encap { endpoint: tunnel.id, key: KEY }];
            let packet = PacketBuf::from_bytes(&frame);
            let key = extract(&packet, Switch::VIF, None).expect("it is whole");
            let flow = lab.switch.put(&key, &encap, 0);
            lab.send(Wire::Vif, &packet);
            let (wire, seen) = lab.receive(PATIENCE).expect("it is not lost");
            assert_eq!(wire, Wire::Uplink);
            assert_eq!(seen.to_vec(), expected(&mut lab, &tunnel, &frame), "{tunnel:?}");
            lab.switch.tables.delete(flow).expect("it is there");
        }
    }
}

/// The ones' complement sum of 16-bit words, folded once.
fn fold(words: &[u8]) -> u16 {
    let sum = words.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = |sum: u32| (sum & 0xffff) + (sum >> 16);
    folded(folded(sum)) as u16
}

/// An IP packet with two bytes behind its UDP datagram. No checksum covers them, but a pseudo
/// header with the length of the IP packet instead of the datagram would.
fn with_surplus() -> Vec<u8> {
    let mut frame = udp4(&[7; 64]);
    frame.extend([0x5a, 0xa5]);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    let (pseudo_of, l4) =
        (|len: u16| [&[10, 0, 0, 1, 10, 0, 0, 2, 0, 17][..], &len.to_be_bytes()].concat(), 34);
    let (wrong, right) = (pseudo_of(total - 20), pseudo_of(total - 22));
    let (field, last) = (l4 + 6, frame.len() - 4);
    frame[field..][..2].copy_from_slice(&fold(&wrong).to_be_bytes());
    frame[last..][..2].fill(0);
    let missing = !fold(&[&right, &frame[l4..last + 2]].concat());
    frame[last..][..2].copy_from_slice(&missing.to_be_bytes());
    assert_eq!(fold(&[&right, &frame[l4..last + 2]].concat()), 0xffff, "it is right");
    frame
}

/// `frame` with its last two bytes chosen so that its complete checksum is correct and equals the
/// sum of the pseudo header, as a pending checksum does.
fn with_pending_looking_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let (l4, addresses, proto) =
        if frame[14] == 0x45 { (34, 26..34, frame[23]) } else { (54, 22..54, frame[20]) };
    let mut pseudo = frame[addresses].to_vec();
    pseudo.extend([0, proto]);
    pseudo.extend(((frame.len() - l4) as u16).to_be_bytes());
    let field = l4 + if proto == 6 { 16 } else { 6 };
    let last = frame.len() - 2;
    frame[field..][..2].copy_from_slice(&fold(&pseudo).to_be_bytes());
    frame[last..].fill(0);
    let missing = !fold(&[&pseudo, &frame[l4..]].concat());
    frame[last..].copy_from_slice(&missing.to_be_bytes());
    assert_eq!(fold(&[&pseudo, &frame[l4..]].concat()), 0xffff, "it is right");
    frame
}

#[test]
fn outer_checksums_are_right_when_a_complete_checksum_looks_pending() {
    testkit::require_root!();
    let mut lab = Lab::new();
    for tunnel in add_tunnels(&mut lab) {
        let made = [tcp4(), tcp6(), udp4(&[7; 64])].map(with_pending_looking_checksum);
        for frame in made.into_iter().chain([with_surplus()]) {
            let encap = [Action::Encap { endpoint: tunnel.id, key: KEY }];
            let packet = PacketBuf::from_bytes(&frame);
            let key = extract(&packet, Switch::VIF, None).expect("it is whole");
            let flow = lab.switch.put(&key, &encap, 0);
            // Padding makes the frame longer than its IP packet.
            for padding in [0, 2] {
                let frame = [&frame[..], &[0x5a; 2][..padding]].concat();
                lab.send(Wire::Vif, &PacketBuf::from_bytes(&frame));
                let (wire, seen) = lab.receive(PATIENCE).expect("it is not lost");
                assert_eq!(wire, Wire::Uplink);
                assert_eq!(seen.to_vec(), expected(&mut lab, &tunnel, &frame), "{tunnel:?}");
            }
            lab.switch.tables.delete(flow).expect("it is there");
        }
    }
}

/// The guest's kernel keeps the data of several writes in pages, and computes the checksum itself.
#[test]
fn outer_checksums_are_right_when_data_is_in_pages() {
    testkit::require_root!();
    let mut lab = Lab::new();
    let vif = |arguments: &str| {
        let mut ip = lab.hosts[1].program("ip");
        assert!(ip.args(arguments.split(' ')).status().expect("there is such a program").success());
    };
    vif("link set vif mtu 9000 address 02:00:00:00:00:01");
    vif("address add 10.0.0.1/24 dev vif");
    vif("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev vif");
    let socket = lab.hosts[1].run(|| UdpSocket::bind("10.0.0.1:40000").expect("a socket"));
    socket.connect("10.0.0.2:5201").expect("there is a way");
    let noise: Vec<u8> = (0..9000_u32).map(|at| (at * at / 7 + at) as u8).collect();
    let write = |len: usize, flags| send(socket.as_raw_fd(), &noise[..len], flags);
    for tunnel in add_tunnels(&mut lab) {
        let flow = put(&mut lab, &tunnel);
        for parts in [[1, 1, 1], [3, 1000, 77], [1, 4095, 4096], [500, 501, 7971], [13, 512, 511]] {
            let [first, second, last] = parts;
            write(first, MSG_MORE).expect("it is taken");
            write(second, MSG_MORE).expect("it is taken");
            write(last, MsgFlags::empty()).expect("it is sent");
            let (wire, seen) = lab.receive(PATIENCE).expect("it is not lost");
            assert_eq!(wire, Wire::Uplink, "{parts:?}");
            let seen = seen.to_vec();
            let template = lab.switch.endpoints.get(tunnel.id).expect("it is there").template();
            let frame = seen[template.as_bytes().len()..].to_vec();
            assert_eq!(frame.len(), UDP_HEADERS + parts.iter().sum::<usize>());
            assert!(seen == expected(&mut lab, &tunnel, &frame), "{parts:?}: {tunnel:?}");
        }
        lab.switch.tables.delete(flow).expect("it is there");
    }
}
