use super::*;
use wire::{
    EthernetPacket, EthernetRepr, Ipv4Packet, Ipv6Packet, Protocol, TcpFlags, TcpPacket, UdpPacket,
};

const ARRIVAL: u32 = 7;
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn check(family: u8, kind: Kind) -> Check {
    let (backend, source) = match family {
        4 => ("10.0.0.11:8080", "10.0.0.254"),
        _ => ("[fd00::b]:8080", "fd00::fe"),
    };
    Check {
        backend: backend.parse().unwrap(),
        backend_mac: MAC,
        source: source.parse().unwrap(),
        source_mac: MacAddr([0x0a, 0, 0, 0, 0, 1]),
        first_port: 40_000,
        port_count: 64,
        arrival: ARRIVAL,
        kind,
        timing: Timing { interval_ms: 5000, timeout_ms: 3000, failures: 2, successes: 2 },
    }
}

fn http() -> Kind {
    Kind::Http(HttpPath::new("/health").unwrap())
}

/// A checker with one check, and its first probe at time 10.
fn checker(check: &Check) -> (Checker<u8>, Vec<u8>) {
    let mut checker = Checker::default();
    checker.set(BTreeMap::from([(1, check.clone())]), 0);
    let frame = probe(&mut checker, 10);
    (checker, frame)
}

/// Polls the checker, which must return exactly one frame.
fn probe(checker: &mut Checker<u8>, now_ms: u64) -> Vec<u8> {
    let mut frames = checker.poll(now_ms);
    assert_eq!(frames.len(), 1);
    let (key, frame) = frames.remove(0);
    assert_eq!(key, 1);
    frame
}

/// Checks the addresses and checksums of a frame, and returns its IP payload.
fn transport(frame: &[u8], check: &Check) -> Vec<u8> {
    let ethernet = EthernetPacket::new_checked(frame).unwrap();
    let EthernetRepr { dst, src, .. } = EthernetRepr::parse(&ethernet);
    assert_eq!((dst, src), (check.backend_mac, check.source_mac));
    let (src, dst, payload, sum, protocol) = if check.backend.is_ipv4() {
        let packet = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        assert!(packet.verify_checksum());
        let (src, dst) = (IpAddr::from(packet.src()), IpAddr::from(packet.dst()));
        (src, dst, packet.payload(), packet.pseudo_header(), packet.protocol())
    } else {
        let packet = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
        let (src, dst) = (IpAddr::from(packet.src()), IpAddr::from(packet.dst()));
        (src, dst, packet.payload(), packet.pseudo_header(), packet.next_header())
    };
    assert_eq!((src, dst), (check.source, check.backend.ip()));
    if protocol == Protocol::TCP {
        assert!(TcpPacket::new_checked(payload).unwrap().verify_checksum(sum));
    } else {
        let packet = UdpPacket::new_checked(payload).unwrap();
        assert!(packet.verify_checksum(sum, wire::udp::ZeroChecksum::Refuse));
    }
    payload.to_vec()
}

/// A segment of the backend that acknowledges the segment `to`, with this sequence number.
fn answer(check: &Check, to: &[u8], seq: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
    let sent = TcpPacket::new_checked(to).unwrap();
    let is_syn = sent.flags().contains(TcpFlags::SYN);
    let len = sent.payload().len() as u32 + u32::from(is_syn);
    // A check with source and backend exchanged, to build a frame in the other direction.
    let back = Check {
        backend: SocketAddr::new(check.source, sent.src_port()),
        source: check.backend.ip(),
        ..check.clone()
    };
    let ack = sent.seq().wrapping_add(len);
    let segment = frame::Segment { source_port: check.backend.port(), seq, ack, flags };
    frame::segment(&back, &segment, payload)
}

fn syn_ack() -> TcpFlags {
    TcpFlags::SYN | TcpFlags::ACK
}

fn state(checker: &Checker<u8>) -> State {
    checker.states().next().unwrap().2
}

/// Answers the SYN of a TCP check.
fn accept(checker: &mut Checker<u8>, check: &Check, probe: &[u8], now_ms: u64) -> Vec<u8> {
    let syn = transport(probe, check);
    let frame = answer(check, &syn, 900, syn_ack(), b"");
    checker.receive(&frame, ARRIVAL, now_ms).expect("a segment follows").1
}

#[test]
fn tcp_backend_is_online_after_enough_connections_which_are_reset() {
    for family in [4, 6] {
        let check = check(family, Kind::Tcp);
        let (mut checker, syn) = checker(&check);
        let header = transport(&syn, &check);
        let header = TcpPacket::new_checked(header.as_slice()).unwrap();
        assert_eq!((header.flags(), header.dst_port()), (TcpFlags::SYN, 8080));
        assert!((40_000..40_064).contains(&header.src_port()));
        let reset = accept(&mut checker, &check, &syn, 20);
        let reset = transport(&reset, &check);
        let reset = TcpPacket::new_checked(reset.as_slice()).unwrap();
        assert_eq!(reset.flags(), TcpFlags::RST | TcpFlags::ACK);
        assert_eq!((reset.seq(), reset.ack()), (header.seq().wrapping_add(1), 901));
        assert_eq!((checker.take_changes(), state(&checker).status), (vec![], Status::Unknown));
        assert_eq!((checker.due_ms(), checker.poll(5019)), (Some(5020), vec![]));
        let syn = probe(&mut checker, 5020);
        accept(&mut checker, &check, &syn, 5030);
        let change = Change { key: 1, status: Status::Online, failure: None };
        assert_eq!(checker.take_changes(), [change]);
        let Counters { checks, failures, answers, unmatched_packets, .. } = checker.counters();
        assert_eq!((checks, failures, answers, unmatched_packets), (2, 0, 2, 0));
    }
}

#[test]
fn backend_is_offline_after_failures_in_a_row_and_comes_back() {
    let check = check(4, Kind::Tcp);
    let (mut checker, syn) = checker(&check);
    // A refused and an accepted connection are not two failures in a row.
    let refuse = |checker: &mut Checker<u8>, syn: &[u8], now_ms| {
        let syn = transport(syn, &check);
        let reset = answer(&check, &syn, 0, TcpFlags::RST | TcpFlags::ACK, b"");
        assert_eq!(checker.receive(&reset, ARRIVAL, now_ms), None);
    };
    refuse(&mut checker, &syn, 20);
    assert_eq!(state(&checker).failure, Some(Failure::Refused));
    let syn = probe(&mut checker, 5020);
    accept(&mut checker, &check, &syn, 5020);
    let syn = probe(&mut checker, 10_020);
    refuse(&mut checker, &syn, 10_020);
    assert_eq!(checker.take_changes(), []);
    // Without an answer, the SYN is retransmitted until the check times out.
    let first = probe(&mut checker, 15_020);
    assert_eq!(probe(&mut checker, 16_020), first);
    assert_eq!(probe(&mut checker, 17_020), first);
    assert_eq!(checker.poll(18_020), []);
    let failure = Some(Failure::Timeout);
    assert_eq!(checker.take_changes(), [Change { key: 1, status: Status::Offline, failure }]);
    for now_ms in [23_020, 28_020] {
        let syn = probe(&mut checker, now_ms);
        accept(&mut checker, &check, &syn, now_ms);
    }
    let online = Change { key: 1, status: Status::Online, failure: None };
    assert_eq!(checker.take_changes(), [online]);
    assert_eq!(checker.counters().failures, 3);
}

/// Makes one HTTP check at time 10. The backend sends these segments, the last one with the flags
/// `last`.
fn http_result(segments: &[&[u8]], last: TcpFlags) -> Option<Failure> {
    let mut check = check(6, http());
    check.timing = Timing { failures: 1, successes: 1, ..check.timing };
    let (mut checker, syn) = checker(&check);
    let request = transport(&accept(&mut checker, &check, &syn, 20), &check);
    let text = TcpPacket::new_checked(request.as_slice()).unwrap().payload().to_vec();
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("GET /health HTTP/1.0\r\nHost: [fd00::b]:8080\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\n"), "{text}");
    let mut seq = 901;
    for (number, payload) in segments.iter().enumerate() {
        let flags = if number + 1 == segments.len() { last } else { TcpFlags::ACK };
        let frame = answer(&check, &request, seq, flags, payload);
        seq += payload.len() as u32;
        if let Some((_, reset)) = checker.receive(&frame, ARRIVAL, 30) {
            let reset = transport(&reset, &check);
            let reset = TcpPacket::new_checked(reset.as_slice()).unwrap();
            assert_eq!((reset.flags(), reset.ack()), (TcpFlags::RST | TcpFlags::ACK, seq));
        }
    }
    let state = state(&checker);
    let expected = if state.failure.is_none() { Status::Online } else { Status::Offline };
    assert_eq!(state.status, expected);
    state.failure
}

#[test]
fn http_status_decides_when_the_backend_answers_a_request() {
    let ack = TcpFlags::ACK;
    let fin = TcpFlags::ACK | TcpFlags::FIN;
    for (segments, flags, expected) in [
        (vec![&b"HTTP/1.1 200 OK\r\n\r\n"[..]], ack, None),
        (vec![b"HTTP", b"/1.0 ", b"399 x"], ack, None),
        (vec![b"HTTP/1.1 503 Overloaded\r\n"], ack, Some(Failure::HttpStatus(503))),
        (vec![b"HTTP/1.1 101 x"], ack, Some(Failure::HttpStatus(101))),
        (vec![b"220 mail.example ESMTP"], ack, Some(Failure::NotHttp)),
        (vec![b"HTTP/1.1 2x0 OK"], ack, Some(Failure::NotHttp)),
        (vec![b"HTTP/1.1"], fin, Some(Failure::NotHttp)),
        (vec![b""], fin, Some(Failure::Closed)),
        (vec![b""], TcpFlags::RST, Some(Failure::Closed)),
    ] {
        assert_eq!(http_result(&segments, flags), expected, "{segments:?}");
    }
}

#[test]
fn request_is_sent_again_when_it_is_lost() {
    let check = check(4, http());
    let (mut checker, syn) = checker(&check);
    let request = accept(&mut checker, &check, &syn, 20);
    assert_eq!(probe(&mut checker, 1020), request);
    // At the timeout, the connection is reset.
    assert_eq!(probe(&mut checker, 2020), request);
    let last = transport(&probe(&mut checker, 3020), &check);
    let last = TcpPacket::new_checked(last.as_slice()).unwrap();
    assert_eq!(last.flags(), TcpFlags::RST | TcpFlags::ACK);
    assert_eq!(state(&checker).failure, Some(Failure::Timeout));
}

/// An ICMP error of the backend about a probe.
fn unreachable(check: &Check, probe: &[u8], code: u8) -> Vec<u8> {
    let quoted = &probe[14..];
    let (mut frame, kind) = match check.backend.is_ipv4() {
        true => (probe[..34].to_vec(), 3),
        false => (probe[..54].to_vec(), 1),
    };
    let message = [&[kind, code, 0, 0, 0, 0, 0, 0], quoted].concat();
    let len = message.len() as u16;
    if check.backend.is_ipv4() {
        let mut packet = Ipv4Packet::new_unchecked(&mut frame[14..]);
        packet.set_total_len(20 + len);
        packet.set_src([10, 0, 0, 11].into());
        packet.set_dst([10, 0, 0, 254].into());
        frame[23] = Protocol::ICMP.0;
    } else {
        let mut packet = Ipv6Packet::new_unchecked(&mut frame[14..]);
        packet.set_payload_len(len);
        packet.set_next_header(Protocol::ICMPV6);
        packet.set_src("fd00::b".parse().unwrap());
        packet.set_dst("fd00::fe".parse().unwrap());
    }
    frame.extend(message);
    frame
}

#[test]
fn udp_backend_is_online_unless_its_port_is_unreachable() {
    for (family, code, other) in [(4, 3, 1), (6, 4, 1)] {
        let mut check = check(family, Kind::Udp);
        check.timing = Timing { failures: 1, successes: 1, ..check.timing };
        let (mut checker, first) = checker(&check);
        let datagram = transport(&first, &check);
        assert_eq!(UdpPacket::new_checked(datagram.as_slice()).unwrap().payload().len(), 8);
        assert_eq!((checker.poll(3009), checker.poll(3010)), (vec![], vec![]));
        assert_eq!(state(&checker).status, Status::Online);
        let second = probe(&mut checker, 8010);
        // Another error, and an error about another datagram.
        let wrong = unreachable(&check, &second, other);
        assert_eq!(checker.receive(&wrong, ARRIVAL, 8010), None);
        assert_eq!(checker.counters().unmatched_packets, 1);
        // A guest that did not receive the datagram knows neither its payload nor its checksum. An
        // IPv4 error can omit the payload, but must quote the IPv4 identification.
        let ip_len = if family == 4 { 20 } else { 40 };
        let (checksum, payload) = (14 + ip_len + 6, 14 + ip_len + 8);
        let short = payload..second.len();
        let mut forged: Vec<Vec<u8>> = [checksum, payload, second.len() - 1]
            .map(|at| {
                let mut forged = second.clone();
                forged[at] ^= 1;
                forged
            })
            .into();
        match family {
            4 => {
                let mut ident = second.clone();
                ident[14 + 4] ^= 1;
                forged.extend([ident.clone(), ident[..short.start].to_vec()]);
            }
            _ => forged.extend(short.map(|len| second[..len].to_vec())),
        }
        for (at, forged) in forged.iter().enumerate() {
            let forged = unreachable(&check, forged, code);
            assert_eq!(checker.receive(&forged, ARRIVAL, 8010), None);
            assert_eq!(checker.counters().unmatched_packets, at as u64 + 2, "{family}");
        }
        // An IPv4 error without quoted payload, and an IPv6 error that is padded for extensions.
        let quoted = match family {
            4 => second[..payload].to_vec(),
            _ => [&second[..], &[0; 40]].concat(),
        };
        let refused = unreachable(&check, &quoted, code);
        assert_eq!(checker.receive(&refused, ARRIVAL, 8010), None);
        let State { status, failure } = state(&checker);
        assert_eq!((status, failure), (Status::Offline, Some(Failure::Refused)), "{family}");
    }
}

#[test]
fn answers_are_ignored_when_they_are_forged_or_damaged() {
    let check = check(4, Kind::Tcp);
    let (mut checker, syn) = checker(&check);
    let syn = transport(&syn, &check);
    let good = answer(&check, &syn, 900, syn_ack(), b"");
    let mut unmatched_packets = 0;
    let mut assert_unmatched = |checker: &mut Checker<u8>, frame: &[u8], arrival| {
        assert_eq!(checker.receive(frame, arrival, 20), None);
        unmatched_packets += 1;
        assert_eq!(
            (checker.counters().unmatched_packets, checker.counters().answers),
            (unmatched_packets, 0)
        );
    };
    // From another guest.
    assert_unmatched(&mut checker, &good, ARRIVAL + 1);
    // To a sequence number that was not sent.
    let mut guessed = syn.clone();
    guessed[4] ^= 1;
    assert_unmatched(&mut checker, &answer(&check, &guessed, 900, syn_ack(), b""), ARRIVAL);
    assert_unmatched(&mut checker, &answer(&check, &guessed, 0, TcpFlags::RST, b""), ARRIVAL);
    // A segment without SYN.
    assert_unmatched(&mut checker, &answer(&check, &syn, 900, TcpFlags::ACK, b""), ARRIVAL);
    for len in 0..good.len() {
        assert_unmatched(&mut checker, &good[..len], ARRIVAL);
    }
    assert!(checker.receive(&good, ARRIVAL, 20).is_some());
}

#[test]
fn status_stays_when_other_checks_change() {
    let mut check = check(4, Kind::Tcp);
    check.timing = Timing { failures: 1, successes: 1, ..check.timing };
    let (mut checker, syn) = checker(&check);
    accept(&mut checker, &check, &syn, 20);
    assert_eq!(state(&checker).status, Status::Online);
    let other = Check { backend: "10.0.0.12:80".parse().unwrap(), ..check.clone() };
    let mut slower = check.clone();
    slower.timing.interval_ms = 9000;
    checker.set(BTreeMap::from([(1, slower.clone()), (2, other)]), 100);
    assert_eq!(state(&checker).status, Status::Online);
    let unknown = Check { kind: http(), ..slower };
    checker.set(BTreeMap::from([(1, unknown)]), 200);
    assert_eq!(state(&checker).status, Status::Unknown);
    checker.set(BTreeMap::new(), 300);
    assert_eq!((checker.due_ms(), checker.states().count()), (None, 0));
}

#[test]
fn probes_have_different_ports_when_checks_have_one_backend() {
    let one = Check { port_count: 2, ..check(4, Kind::Tcp) };
    let mut checker = Checker::default();
    checker.set((0..3).map(|key| (key, one.clone())).collect(), 0);
    let frames = checker.poll(100);
    let ports: BTreeSet<u16> = frames
        .iter()
        .map(|(_, frame)| TcpPacket::new_checked(&transport(frame, &one)[..]).unwrap().src_port())
        .collect();
    assert_eq!(ports, BTreeSet::from([40_000, 40_001]));
    assert_eq!((checker.counters().checks, checker.counters().no_port), (2, 1));
    // Checks beyond the limit are not made.
    let many = (0..=MAX_CHECKS as u32).map(|key| (key, one.clone())).collect();
    let mut checker = Checker::default();
    checker.set(many, 0);
    assert_eq!((checker.states().count(), checker.counters().over_limit), (MAX_CHECKS, 1));
}

#[test]
fn path_is_refused_when_it_is_no_path() {
    assert_eq!(HttpPath::new("/a?b=c").unwrap().as_str(), "/a?b=c");
    let long = format!("/{}", "x".repeat(MAX_PATH_LEN));
    for path in ["", "health", "/a b", "/a\r\nX: y", "/ü", &long] {
        assert_eq!(HttpPath::new(path), None, "{path:?}");
    }
}
