use super::*;
use proptest::prelude::*;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
const SERVER: [u8; 4] = [10, 0, 0, 1];
const XID: [u8; 4] = [1, 2, 3, 4];
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 5];

fn server() -> Server {
    let mut server = Server::new(CLIENT);
    server.add(code::NETMASK, &[255, 255, 255, 0]);
    server.add(code::SERVER_ID, &SERVER);
    server.add(code::LEASE_TIME, &3600_u32.to_be_bytes());
    server.add_addresses(6, &[[8, 8, 8, 8].into(), [9, 9, 9, 9].into()]);
    server
}

/// A message of a client. Every byte that a server must set instead of copying it is 0xa5.
fn request(kind: u8, ciaddr: [u8; 4], options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut message = vec![0xa5; HEADER_LEN];
    message[..4].copy_from_slice(&[REQUEST, 1, 6, 0xa5]);
    message[4..8].copy_from_slice(&XID);
    message[10..12].copy_from_slice(&[0, 0]);
    message[12..16].copy_from_slice(&ciaddr);
    message[24..28].copy_from_slice(&[0; 4]);
    message[28..44].fill(0);
    message[28..34].copy_from_slice(&MAC);
    message.extend(COOKIE);
    for (code, value) in [(code::MESSAGE_TYPE, &[kind][..])].iter().chain(options) {
        put(&mut message, *code, value);
    }
    message.push(code::END);
    message
}

/// Checks the header of an answer, and returns its options.
fn options_of(answer: &Answer, yiaddr: [u8; 4]) -> Vec<(u8, &[u8])> {
    let bytes = &answer.payload;
    assert!(bytes.len() >= MIN_MESSAGE_LEN);
    assert_eq!(bytes[..4], [REPLY, 1, 6, 0]);
    assert_eq!(bytes[4..8], XID);
    assert_eq!(bytes[8..10], [0, 0], "secs");
    assert_eq!(bytes[16..20], yiaddr);
    assert_eq!(bytes[28..34], MAC);
    assert_eq!(bytes[34..236], [0; 202], "padding of the address, and names");
    assert_eq!(bytes[236..240], COOKIE);
    Options(&bytes[240..]).map(|option| option.expect("a whole option")).collect()
}

#[test]
fn client_gets_its_address_when_it_asks_for_it() {
    let server = server();
    for (kind, asks, answers) in
        [(message::DISCOVER, None, message::OFFER), (message::REQUEST, Some(CLIENT), message::ACK)]
    {
        let options = asks.map(|address| (code::REQUESTED_ADDRESS, address.octets()));
        let options: Vec<_> = options.iter().map(|(code, value)| (*code, &value[..])).collect();
        let answer = server.answer(&request(kind, [0; 4], &options)).expect("an answer");
        assert_eq!(answer.destination, Destination::Client);
        let expected: [(u8, &[u8]); 5] = [
            (code::MESSAGE_TYPE, &[answers]),
            (code::NETMASK, &[255, 255, 255, 0]),
            (code::SERVER_ID, &SERVER),
            (code::LEASE_TIME, &[0, 0, 0x0e, 0x10]),
            (6, &[8, 8, 8, 8, 9, 9, 9, 9]),
        ];
        assert_eq!(options_of(&answer, CLIENT.octets()), expected);
        assert_eq!(answer.payload[20..24], [0; 4], "siaddr");
    }
}

#[test]
fn lease_is_renewed_when_the_client_has_that_address() {
    let renewal = request(message::REQUEST, CLIENT.octets(), &[]);
    let answer = server().answer(&renewal).expect("an answer");
    assert_eq!(options_of(&answer, CLIENT.octets())[0], (code::MESSAGE_TYPE, &[message::ACK][..]));
    assert_eq!(answer.payload[12..16], CLIENT.octets(), "ciaddr");
}

#[test]
fn request_is_refused_when_it_is_about_another_address() {
    for (ciaddr, options) in
        [([10, 0, 0, 6], vec![]), ([0; 4], vec![(code::REQUESTED_ADDRESS, &[10, 0, 0, 6][..])])]
    {
        let answer = server().answer(&request(message::REQUEST, ciaddr, &options));
        let answer = answer.expect("an answer");
        assert_eq!(answer.destination, Destination::Broadcast);
        let expected: [(u8, &[u8]); 2] =
            [(code::MESSAGE_TYPE, &[message::NAK]), (code::SERVER_ID, &SERVER)];
        assert_eq!(options_of(&answer, [0; 4]), expected);
        assert_eq!(answer.payload[12..16], [0; 4], "ciaddr");
    }
}

#[test]
fn answer_is_broadcast_when_the_client_asks_for_that() {
    let mut discover = request(message::DISCOVER, [0; 4], &[]);
    discover[at::FLAGS] = BROADCAST_FLAG;
    let answer = server().answer(&discover).expect("an answer");
    assert_eq!(answer.destination, Destination::Broadcast);
    assert_eq!(answer.payload[at::FLAGS], BROADCAST_FLAG);
}

#[test]
fn inform_is_answered_without_a_lease() {
    let inform = request(message::INFORM, CLIENT.octets(), &[]);
    let answer = server().answer(&inform).expect("an answer");
    let codes: Vec<u8> = options_of(&answer, [0; 4]).iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [code::MESSAGE_TYPE, code::SERVER_ID, 6]);
}

#[test]
fn boot_file_depends_on_the_kind_of_client() {
    let file = |ipxe: Option<&[u8]>, other: Option<&[u8]>, is_ipxe: bool| {
        let mut server = server();
        server.set_boot_files(ipxe, other);
        server.set_next_server(SERVER.into());
        let options: &[(u8, &[u8])] = if is_ipxe { &[(code::ETHERBOOT, &[])] } else { &[] };
        let answer =
            server.answer(&request(message::DISCOVER, [0; 4], options)).expect("an answer");
        assert_eq!(answer.payload[20..24], SERVER, "siaddr");
        let options = options_of(&answer, CLIENT.octets());
        let file = options.iter().find(|(code, _)| *code == code::BOOT_FILE);
        file.map(|(_, file)| String::from_utf8_lossy(file).into_owned())
    };
    let (a, b) = (Some(&b"a"[..]), Some(&b"b"[..]));
    for (files, expected) in
        [((a, b), ["a", "b"]), ((a, None), ["a", "a"]), ((None, b), ["b", "b"])]
    {
        for (is_ipxe, expected) in [true, false].into_iter().zip(expected) {
            assert_eq!(file(files.0, files.1, is_ipxe).as_deref(), Some(expected));
        }
    }
    assert_eq!(file(None, None, true), None);
}

#[test]
fn options_are_encoded_as_their_rfcs_say() {
    let mut server = Server::new(CLIENT);
    let route = |destination: [u8; 4], prefix_len| Route {
        destination: destination.into(),
        prefix_len,
        gateway: SERVER.into(),
    };
    // The examples of RFC 3442.
    server.add_routes(
        121,
        &[route([0; 4], 0), route([10, 17, 0, 0], 16), route([10, 229, 0, 128], 25)],
    );
    server.add_domains(119, ["a.b", "c"]).expect("domain names");
    assert!(server.add_domains(119, ["a..b"]).is_err());
    server.add(66, &[b'x'; 300]);
    let answer = server.answer(&request(message::DISCOVER, [0; 4], &[])).expect("an answer");
    let options = options_of(&answer, CLIENT.octets());
    let expected: [(u8, &[u8]); 4] = [
        (121, &[0, 10, 0, 0, 1, 16, 10, 17, 10, 0, 0, 1, 25, 10, 229, 0, 128, 10, 0, 0, 1]),
        (119, b"\x01a\x01b\0\x01c\0"),
        (66, &[b'x'; 255]),
        (66, &[b'x'; 45]),
    ];
    assert_eq!(options[1..], expected);
}

#[test]
fn options_that_are_too_long_are_refused() {
    let mut server = Server::new(CLIENT);
    server.add(66, &[b'x'; 900]);
    assert_eq!(server.check(), Ok(()));
    let answer = server.answer(&request(message::DISCOVER, [0; 4], &[])).expect("an answer");
    assert!(answer.payload.len() <= HEADER_LEN + COOKIE.len() + MAX_OPTIONS_LEN);
    server.set_boot_files(Some(&[b'y'; 100]), None);
    assert_eq!(server.check(), Err(TooLong(4 + 900 + 8 + 100 + 2)));
}

#[test]
fn nothing_is_answered_when_the_message_is_not_for_a_server() {
    let server = server();
    let discover = request(message::DISCOVER, [0; 4], &[(12, b"name")]);
    assert!(server.answer(&discover).is_some());
    for kind in (0..=u8::MAX).filter(|kind| !matches!(kind, 1 | 3 | 8)) {
        assert_eq!(server.answer(&request(kind, CLIENT.octets(), &[])), None, "type {kind}");
    }
    for (at, byte) in [(at::OP, REPLY), (at::OP, 0), (236, 0), (239, 0)] {
        let mut bad = discover.clone();
        bad[at] = byte;
        assert_eq!(server.answer(&bad), None, "byte {at}");
    }
    // The end option may be missing, but no option may be truncated.
    let whole = [discover.len(), discover.len() - 1, discover.len() - 7];
    for len in 0..=discover.len() {
        let is_answered = server.answer(&discover[..len]).is_some();
        assert_eq!(is_answered, whole.contains(&len), "{len} bytes");
    }
    for bad in [&[53, 0][..], &[53, 2, 1, 1], &[50, 3, 1, 2, 3]] {
        let mut message = discover.clone();
        message.truncate(discover.len() - 1);
        message.extend(bad);
        assert_eq!(server.answer(&message), None, "{bad:?}");
    }
}

proptest! {
    #[test]
    fn any_options_are_answered_in_time(bytes: Vec<u8>) {
        let mut message = request(message::DISCOVER, [0; 4], &[]);
        message.pop();
        message.extend(bytes);
        if let Some(answer) = server().answer(&message) {
            let yiaddr = answer.payload[at::YIADDR].try_into().expect("an address");
            options_of(&answer, yiaddr);
        }
    }
}
