use super::*;
use proptest::prelude::*;

const ID: [u8; 2] = [0, 0];

fn resolver() -> Resolver {
    let mut own = Records::new(true);
    assert!(own.add("VM1.example.", "10.0.0.4 fd77::4 10.0.0.5"));
    assert!(own.add("4.0.0.10.in-addr.arpa", "vm1.example"));
    assert!(!own.add("bad.example", "a..b"));
    assert!(own.add("v4.example", "10.0.0.8"));
    let mut other = Records::new(false);
    assert!(other.add("vm2.example", "10.0.0.6"));
    assert!(other.add("vm1.example", "10.0.0.7"));
    Resolver([Arc::new(own), Arc::new(other)].into())
}

fn question(name: &str, kind: u16) -> Vec<u8> {
    // Recursion is desired, and an additional record follows.
    let mut message = [&ID[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 1]].concat();
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, kind as u8, 0, 1]);
    message.extend([0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0]);
    message
}

type Answered = ([u8; 2], Vec<(u16, Vec<u8>)>);

/// The flags of an answer, and type and data of its records.
fn answered(question: &[u8]) -> Option<Answered> {
    let answer = resolver().answer(question)?;
    assert_eq!((&answer[..2], &answer[4..6]), (&question[..2], &[0, 1][..]));
    assert_eq!(answer[8..12], [0; 4]);
    let question_end = question.len() - 11;
    assert_eq!(answer[12..question_end], question[12..question_end]);
    let mut rest = &answer[question_end..];
    let mut records = Vec::new();
    while !rest.is_empty() {
        assert_eq!((&rest[..2], &rest[4..10]), (&[0xc0, 12][..], &[0, 1, 0, 0, 14, 16][..]));
        let len = usize::from(rest[11]);
        records.push((u16::from(rest[3]), rest[12..12 + len].to_vec()));
        rest = &rest[12 + len..];
    }
    assert_eq!(usize::from(answer[7]), records.len());
    Some(([answer[2], answer[3]], records))
}

#[test]
fn records_of_the_asked_type_are_answered() {
    let v4 = |last: u8| (kind::A, vec![10, 0, 0, last]);
    let v6 = (kind::AAAA, [&[0xfd, 0x77][..], &[0; 13], &[4]].concat());
    let pointer = (kind::PTR, b"\x03vm1\x07example\0".to_vec());
    for (name, question_type, records) in [
        ("vm1.example", kind::A, vec![v4(4), v4(5)]),
        ("vm1.EXAMPLE", kind::AAAA, vec![v6.clone()]),
        ("vm1.example", kind::ANY, vec![v4(4), v4(5), v6]),
        ("vm2.example", kind::A, vec![v4(6)]),
        ("4.0.0.10.in-addr.arpa", kind::PTR, vec![pointer]),
    ] {
        assert_eq!(
            answered(&question(name, question_type)),
            Some(([0x85, 0], records)),
            "{name} {question_type}"
        );
    }
}

#[test]
fn question_without_a_record_goes_on_or_is_refused() {
    for (name, kind) in [
        ("vm1", kind::A),
        ("example", kind::A),
        ("a.vm1.example", kind::A),
        ("vm2.example", kind::AAAA),
        ("vm1.example", kind::PTR),
        ("vm1.example", 15),
        ("bad.example", kind::A),
    ] {
        assert_eq!(answered(&question(name, kind)), None, "{name} {kind}");
    }
    // A name with a pointer record has no addresses, so a question for one is not refused.
    assert_eq!(answered(&question("4.0.0.10.in-addr.arpa", kind::A)), None);
    let refused = Some(([0x85, REFUSED], Vec::new()));
    assert_eq!(answered(&question("v4.example", kind::AAAA)), refused);
}

#[test]
fn addresses_before_an_invalid_part_are_served() {
    for (value, is_valid, expected) in [
        ("10.0.0.4", true, &[[10, 0, 0, 4]][..]),
        (" 10.0.0.4/24  10.0.0.5 ", true, &[[10, 0, 0, 4], [10, 0, 0, 5]]),
        ("10.0.0.4 10.0.0.5, 10.0.0.6", false, &[[10, 0, 0, 4]]),
        ("10.0.0.4 host", false, &[[10, 0, 0, 4]]),
        ("host", true, &[]),
        ("host 10.0.0.4", false, &[]),
        ("", false, &[]),
    ] {
        let mut records = Records::new(false);
        assert_eq!(records.add("a", value), is_valid, "{value}");
        let found: Vec<[u8; 4]> = match records.names.get("a") {
            Some(Record::Addresses { v4, .. }) => v4.iter().map(Ipv4Addr::octets).collect(),
            _ => Vec::new(),
        };
        assert_eq!(found, expected, "{value}");
    }
}

#[test]
fn addresses_take_turns() {
    let mut second = question("vm1.example", kind::A);
    second[1] = 3;
    let (_, records) = answered(&second).expect("an answer");
    assert_eq!(records, [(kind::A, vec![10, 0, 0, 5]), (kind::A, vec![10, 0, 0, 4])]);
}

#[test]
fn answer_has_as_many_records_as_fit() {
    let mut records = Records::new(false);
    let addresses: Vec<String> = (0..200).map(|last| format!("10.0.0.{last}")).collect();
    assert!(records.add("many", &addresses.join(" ")));
    let resolver = Resolver([Arc::new(records)].into());
    let answer = resolver.answer(&question("many", kind::A)).expect("an answer");
    assert_eq!((answer.len(), answer[7]), (12 + 10 + 30 * 16, 30));
}

#[test]
fn malformed_question_is_not_answered() {
    let good = question("vm1.example", kind::A);
    let ask = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        resolver().answer(&bad).is_some()
    };
    assert!(ask(1, 7));
    // A response, another opcode, no or two questions, a pointer, another class.
    for (at, byte) in [(2, 0x81), (2, 0x11), (5, 0), (5, 2), (12, 0xc0), (12, 64), (28, 3)] {
        assert!(!ask(at, byte), "byte {at}");
    }
    // The additional record may be truncated, but not the question.
    for len in 0..good.len() {
        let is_answered = resolver().answer(&good[..len]).is_some();
        assert_eq!(is_answered, len >= good.len() - 11, "{len} bytes");
    }
    let mut dotted = good.clone();
    dotted.splice(12..25, *b"\x0bvm1.example\0");
    assert_eq!(resolver().answer(&dotted), None);
    let long = question(&[&"x".repeat(63)[..]; 4].join("."), kind::A);
    assert_eq!(resolver().answer(&long), None);
}

proptest! {
    #[test]
    fn any_bytes_are_answered_in_time(bytes: Vec<u8>) {
        let mut message = [&ID[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
        message.extend(bytes);
        resolver().answer(&message);
    }
}
