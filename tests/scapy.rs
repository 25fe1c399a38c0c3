//! Tests with scapy as an independent implementation: weft parses frames that scapy builds, and
//! scapy parses frames that weft emits.
//!
//! `peers/frames.py` builds frames of every type and lists their fields.

use crate::peers;
use crate::peers::scapy::bytes_of;
use crate::peers::stack::{Layer, Numbers, Stack};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::OnceLock;
use testkit::{report, require_program};
use wire::{EtherType, Ipv4Packet, Ipv6Packet, ipv6, transport_offset};

/// A frame built by scapy.
#[derive(Deserialize)]
struct Written {
    name: String,
    frame: String,
    unpadded_len: usize,
    layers: Value,
}

/// The dissection of a frame by scapy.
#[derive(Deserialize)]
struct Read {
    layers: Value,
    whole: bool,
}

impl Written {
    fn bytes(&self) -> Vec<u8> {
        bytes_of(&self.frame)
    }
}

fn scapy(mode: &str, input: &str) -> String {
    peers::scapy::run_script("frames.py", &[mode], input)
}

/// The frames that the script builds. All tests share them, because importing scapy takes long.
fn written() -> &'static [Written] {
    static FRAMES: OnceLock<Vec<Written>> = OnceLock::new();
    FRAMES.get_or_init(|| {
        let frames: Vec<Written> = scapy("write", "")
            .lines()
            .map(|line| serde_json::from_str(line).expect("the script prints JSON"))
            .collect();
        assert!(frames.len() > 250, "only {} frames", frames.len());
        frames
    })
}

macro_rules! require_scapy {
    () => {
        require_program!("scapy", "python3-scapy");
    };
}

#[test]
fn parsed_fields_agree_with_scapy() {
    require_scapy!();
    let mut layers = BTreeSet::new();
    for written in written() {
        let (name, frame) = (&written.name, written.bytes());
        let stack = Stack::read(&frame).unwrap_or_else(|e| panic!("{name}: {e}: {frame:02x?}"));
        assert_eq!(stack.describe(), written.layers, "{name}: {frame:02x?}");
        assert_eq!(stack.wrong_checksums, 0, "{name}: {frame:02x?}");
        let located =
            transport_offset(&frame).expect("the headers of a valid frame can be located");
        if located.is_ip() {
            assert_eq!(located.l3_end, written.unpadded_len, "{name}: the end of the packet");
        }
        layers.extend(stack.layers.iter().map(std::mem::discriminant).map(|d| format!("{d:?}")));
    }
    assert_eq!(layers.len(), 13, "every header type occurs");
    report::peer("scapy", "its frames of every kind parsed, all fields compared");
}

#[test]
fn emitted_frames_equal_the_frames_of_scapy() {
    require_scapy!();
    for written in written() {
        let (name, frame) = (&written.name, written.bytes());
        let stack = Stack::read(&frame).unwrap_or_else(|e| panic!("{name}: {e}"));
        // An opaque payload has no length field, so padding would become a part of it. The script
        // adds no padding to such frames.
        assert_eq!(stack.emit(), frame[..written.unpadded_len], "{name}");
    }
}

#[test]
fn scapy_parses_the_same_fields_from_emitted_frames() {
    require_scapy!();
    let (mut numbers, mut input, mut expected) = (Numbers::new(7), String::new(), Vec::new());
    for written in written() {
        let frame = written.bytes();
        let mut stack = Stack::read(&frame).expect("scapy's frames are valid");
        stack.layers.iter_mut().for_each(|layer| layer.vary(&mut numbers));
        let emitted = stack.emit();
        assert_ne!(emitted, frame[..written.unpadded_len], "{}: nothing varies", written.name);
        emitted.iter().for_each(|byte| write!(input, "{byte:02x}").expect("a String takes all"));
        input.push('\n');
        expected.push((&written.name, stack.describe()));
    }
    let output = scapy("read", &input);
    assert_eq!(output.lines().count(), expected.len(), "an answer for each frame");
    for ((line, frame), (name, layers)) in output.lines().zip(input.lines()).zip(expected) {
        let read: Read = serde_json::from_str(line).expect("the script prints JSON");
        assert_eq!(read.layers, layers, "{name}: {frame}");
        assert!(read.whole, "{name}: scapy has other lengths or checksums: {frame}");
    }
    report::peer("scapy", "our frames of every kind read, all fields and checksums compared");
}

#[test]
fn truncated_frames_are_refused() {
    require_scapy!();
    for written in written() {
        let (name, frame) = (&written.name, &written.bytes()[..written.unpadded_len]);
        let stack = Stack::read(frame).expect("scapy's frames are valid");
        let headers_len = frame.len() - tail_len(&stack);
        let located = transport_offset(frame).expect("the headers of a valid frame can be located");
        let knows_its_length = located.is_ip() || located.ethertype == EtherType::ARP;
        for len in 0..frame.len() {
            let result = Stack::read(&frame[..len]);
            let must_fail = knows_its_length || len < headers_len;
            assert!(result.is_err() || !must_fail, "{name}: {len} bytes of {frame:02x?}");
        }
        if located.is_ip() {
            let l3_header_len = network_header_len(frame, located.l3);
            for len in located.l3 + l3_header_len..frame.len() {
                let result = Stack::read(&shortened(frame, located.l3, len)).map(|_| ());
                assert!(
                    result.is_err() || len >= headers_len,
                    "{name}: an IP packet of {len} bytes in {frame:02x?}"
                );
            }
        }
    }
}

/// The number of bytes after the last header: the payload, or the body of an ICMP message.
fn tail_len(stack: &Stack<'_>) -> usize {
    match stack.layers.last() {
        Some(Layer::Payload(payload)) => payload.len(),
        Some(Layer::Icmpv4(message)) => message.message_len() - wire::icmp::HEADER_LEN,
        Some(Layer::Icmpv6(message)) => message.message_len() - wire::icmp::HEADER_LEN,
        _ => 0,
    }
}

fn network_header_len(frame: &[u8], l3: usize) -> usize {
    match Ipv4Packet::new_checked(&frame[l3..]) {
        Ok(packet) => packet.header_len(),
        Err(_) => ipv6::HEADER_LEN,
    }
}

/// The first `len` bytes of the frame, with the length field of its IP packet at `l3` adjusted.
fn shortened(frame: &[u8], l3: usize, len: usize) -> Vec<u8> {
    let mut frame = frame[..len].to_vec();
    let ip_len = (len - l3) as u16;
    if frame[l3] >> 4 == 4 {
        let mut packet = Ipv4Packet::new_unchecked(&mut frame[l3..]);
        packet.set_total_len(ip_len);
        packet.fill_checksum();
    } else {
        let mut packet = Ipv6Packet::new_unchecked(&mut frame[l3..]);
        packet.set_payload_len(ip_len - ipv6::HEADER_LEN as u16);
    }
    frame
}
