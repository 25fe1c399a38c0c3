//! The eBPF programs, in test runs of the kernel (`BPF_PROG_TEST_RUN`). A fuzzer sees no coverage
//! there, but it sees that of userspace, which has to read each frame in the same way.

use std::cell::RefCell;

use datapath_bpf::KernelKey;
use datapath_bpf::lab::{ParserVerdict, TestParser};
use flow::{PortNo, extract};
use packet::PacketBuf;
use wire::ethernet;

/// The longest frame of a test run here, in bytes.
const MAX_LEN: usize = 2048;
const PORT: PortNo = PortNo(7);

thread_local! {
    static PARSER: RefCell<TestParser> = RefCell::new(
        TestParser::load().expect("only root may load programs: run the target as root"),
    );
}

/// Parses a frame with the program and in userspace, which must agree. Returns whether it has a
/// key; `None` if the program leaves it to userspace.
pub fn parser(bytes: &[u8]) -> Option<bool> {
    let mut frame = bytes.get(..MAX_LEN).unwrap_or(bytes).to_vec();
    frame.resize(frame.len().max(ethernet::HEADER_LEN), 0);
    let verdict = PARSER.with_borrow_mut(|parser| parser.parse(&frame, PORT));
    let expected = extract(&PacketBuf::from_bytes(&frame), PORT, None);
    match (verdict.expect("a test run"), expected) {
        (ParserVerdict::Key(key), Ok(expected)) => {
            assert_eq!(key, KernelKey::from(&expected));
            Some(true)
        }
        (ParserVerdict::Malformed, Err(_)) => Some(false),
        (ParserVerdict::Left, _) => None,
        (verdict, expected) => panic!("program {verdict:?}, userspace {expected:?}"),
    }
}
