use super::*;
use proptest::prelude::*;

const CLIENT: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 5);
const DNS: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x53);
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SERVER_ID: [u8; 10] = [0, 3, 0, 1, 2, 0, 0, 0, 0, 1];
const CLIENT_ID: &[u8] = b"client";
const IA: [u8; 12] = [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0];

fn server(address: Option<Ipv6Addr>) -> Server {
    let mut server = Server::new(MAC, address);
    server.add_addresses(23, &[DNS]);
    server
}

fn request(kind: u8, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = vec![kind, 7, 8, 9];
    for (code, value) in [(code::CLIENT_ID, CLIENT_ID)].iter().chain(options) {
        put(&mut message, *code, value);
    }
    message
}

type Answered = (u8, Vec<(u16, Vec<u8>)>);

/// Type of an answer, and its options without the two that every answer has.
fn answered(server: &Server, request: &[u8]) -> Option<Answered> {
    let answer = server.answer(request)?;
    assert_eq!(answer[1..4], request[1..4], "transaction");
    let options = Options(&answer[4..]).map(|option| option.expect("a whole option"));
    let mut options: Vec<_> = options.map(|(code, value)| (code, value.to_vec())).collect();
    let rest = options.split_off(2);
    assert_eq!(options[0].0, code::CLIENT_ID);
    assert_eq!(options[1], (code::SERVER_ID, SERVER_ID.to_vec()));
    Some((answer[0], rest))
}

fn association() -> Vec<u8> {
    let lifetimes = [0xff; 8];
    let address = [&[0, 5, 0, 24][..], &CLIENT.octets(), &lifetimes].concat();
    [&IA[..4], &lifetimes, &address].concat()
}

#[test]
fn client_gets_its_address_when_it_asks_for_one() {
    let dns = (23, DNS.octets().to_vec());
    for kind in (0..=u8::MAX).filter(|kind| !matches!(kind, 8 | 9 | 11)) {
        let found = answered(&server(Some(CLIENT)), &request(kind, &[(code::IA_NA, &IA)]));
        let answers = match kind {
            message::SOLICIT => message::ADVERTISE,
            message::REQUEST..=message::REBIND => message::REPLY,
            _ => {
                assert_eq!(found, None, "type {kind}");
                continue;
            }
        };
        let expected = vec![(code::IA_NA, association()), dns.clone()];
        assert_eq!(found, Some((answers, expected)), "type {kind}");
        // A client without an identity association requests no address, and gets no answer.
        assert_eq!(answered(&server(Some(CLIENT)), &request(kind, &[])), None, "type {kind}");
    }
}

#[test]
fn client_gets_only_options_when_it_has_an_address() {
    let expected = Some((message::REPLY, vec![(23, DNS.octets().to_vec())]));
    let inform = request(message::INFORMATION_REQUEST, &[]);
    assert_eq!(answered(&server(None), &inform), expected);
    assert_eq!(answered(&server(Some(CLIENT)), &inform), expected);
}

#[test]
fn release_and_decline_succeed() {
    for kind in [message::RELEASE, message::DECLINE] {
        let release = request(kind, &[(code::SERVER_ID, &SERVER_ID), (code::IA_NA, &IA)]);
        let expected = Some((message::REPLY, vec![(code::STATUS, vec![0, 0])]));
        assert_eq!(answered(&server(Some(CLIENT)), &release), expected);
    }
}

#[test]
fn message_for_another_server_is_not_answered() {
    let ask = |id: &[u8]| {
        let request = request(message::REQUEST, &[(code::SERVER_ID, id), (code::IA_NA, &IA)]);
        answered(&server(Some(CLIENT)), &request).is_some()
    };
    assert!(ask(&SERVER_ID));
    assert!(!ask(&SERVER_ID[..9]) && !ask(b"other") && !ask(b""));
}

#[test]
fn boot_file_and_name_depend_on_the_request() {
    let mut server = server(Some(CLIENT));
    server.set_boot_files(Some(b"tftp://a"), Some(b"tftp://b"));
    server.set_name("vm.example").expect("a domain name");
    let last = |options: &[(u16, &[u8])]| {
        let options = [&[(code::IA_NA, &IA[..])], options].concat();
        let (_, options) =
            answered(&server, &request(message::SOLICIT, &options)).expect("an answer");
        options[2..].to_vec()
    };
    let file = |url: &[u8]| (code::BOOT_FILE_URL, url.to_vec());
    let name = |flags: u8| (code::FQDN, [&[flags][..], b"\x02vm\x07example\0"].concat());
    assert_eq!(last(&[]), [file(b"tftp://b")]);
    assert_eq!(last(&[(code::USER_CLASS, b"\0\x04iPXE")]), [file(b"tftp://a")]);
    let classes = [(code::USER_CLASS, &b"\0\x04iPXE"[..]), (code::USER_CLASS, b"\0\x01x")];
    assert_eq!(last(&classes), [file(b"tftp://a")]);
    assert_eq!(last(&[(code::FQDN, &[0])]), [file(b"tftp://b"), name(fqdn::N)]);
    let overridden = name(fqdn::N | fqdn::O);
    assert_eq!(last(&[(code::FQDN, &[fqdn::S, 0])]), [file(b"tftp://b"), overridden]);
}

#[test]
fn options_that_are_too_long_are_refused() {
    let mut server = server(None);
    assert!(server.add_domains(24, ["a.b", "c..d"]).is_err());
    server.add_domains(24, ["a.b", "c"]).expect("domain names");
    assert_eq!(server.check(), Ok(()));
    server.set_boot_files(None, Some(&[b'x'; 900]));
    assert_eq!(server.check(), Err(TooLong(20 + 4 + 8 + 904)));
}

#[test]
fn malformed_message_is_not_answered() {
    let server = server(Some(CLIENT));
    let solicit = request(message::SOLICIT, &[(code::IA_NA, &IA), (code::FQDN, &[0])]);
    let before_name = solicit.len() - 5;
    for len in 0..=solicit.len() {
        let is_answered = server.answer(&solicit[..len]).is_some();
        assert_eq!(is_answered, [before_name, solicit.len()].contains(&len), "{len} bytes");
    }
    let bad = |options: &[(u16, &[u8])]| server.answer(&request(message::SOLICIT, options));
    assert_eq!(bad(&[(code::IA_NA, &IA[..11])]), None);
    assert_eq!(bad(&[(code::IA_NA, &IA), (code::FQDN, &[])]), None);
    assert_eq!(bad(&[(code::IA_NA, &IA), (code::CLIENT_ID, &[0; 131])]), None);
    let mut anonymous = vec![message::INFORMATION_REQUEST, 0, 0, 0];
    put(&mut anonymous, 6, &[0, 23]);
    assert_eq!(server.answer(&anonymous), None);
}

proptest! {
    #[test]
    fn any_options_are_answered_in_time(bytes: Vec<u8>) {
        let mut message = request(message::SOLICIT, &[(code::IA_NA, &IA)]);
        message.extend(bytes);
        answered(&server(Some(CLIENT)), &message);
    }
}
