//! [`Extractor`]: parses a frame with the program and with userspace, and compares.

use super::abi;
use super::frames::{Case, MAX_DATA};
use datapath_bpf::KernelKey;
use flow::FlowKey;
use generated::types::{tunnel, weft_key};
use generated::{TestExtractSkel, TestExtractSkelBuilder};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{OpenObject, ProgramInput};
use packet::PacketBuf;
use std::collections::BTreeMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use wire::ParseError;

#[allow(unsafe_code, warnings, clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/test_extract.skel.rs"));
}

/// The program's result for a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    Parsed,
    Malformed,
    Upcall,
}

/// The loaded program.
pub struct Extractor<'obj> {
    skel: TestExtractSkel<'obj>,
}

impl<'obj> Extractor<'obj> {
    pub fn load(object: &'obj mut MaybeUninit<OpenObject>) -> Self {
        let open = TestExtractSkelBuilder::default().open(object).expect("the object is whole");
        Self { skel: open.load().expect("the verifier takes the program") }
    }

    /// The program, for attaching it.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.skel.progs.test_extract.as_fd()
    }

    /// The kernel's ids of the loaded programs.
    pub fn program_ids(&self) -> Vec<u32> {
        super::program_ids(self.skel.object())
    }

    /// Parses a frame with the program, and returns an error if userspace disagrees.
    pub fn compare(&mut self, case: &Case) -> Result<Outcome, String> {
        let expected = extract(case);
        let (stripped, frame) = strip(case);
        self.prepare(case, expected.as_ref().ok());
        let input = self.variables();
        input.stripped_tag = stripped;
        input.frame_len = frame.len() as u32;
        // The kernel runs programs on frames of at least 64 bytes here; the program cuts them.
        let mut data = frame[..frame.len().min(MAX_DATA)].to_vec();
        data.resize(data.len().max(64), 0xa5);
        let run = ProgramInput { data_in: Some(&data), ..ProgramInput::default() };
        let output = self.skel.progs.test_extract.test_run(run);
        let output = output.unwrap_or_else(|error| panic!("{error} on {} bytes", data.len()));
        assert_ne!(output.return_value.cast_signed(), -1, "the program cannot make {case:?}");
        self.judge(case, &expected)
    }

    /// As [`Extractor::compare`], but `send` sends the frame, so that the kernel runs the program
    /// on it. Also returns how many bytes were linear.
    pub fn compare_sent(
        &mut self,
        case: &Case,
        send: impl FnOnce(&[u8]),
    ) -> Result<(Outcome, u32), String> {
        let expected = extract(case);
        self.prepare(case, expected.as_ref().ok());
        let runs = self.variables().runs;
        send(&case.frame);
        assert_eq!(self.variables().runs, runs + 1, "the program runs on {case:?}");
        Ok((self.judge(case, &expected)?, self.variables().linear_len))
    }

    fn prepare(&mut self, case: &Case, key: Option<&FlowKey>) {
        let input = self.variables();
        input.in_port = case.port.0;
        input.stripped_tag = 0;
        input.frame_len = 0;
        input.has_tunnel = false;
        if let (Some(key), true) = (key, case.tunnel.is_some()) {
            input.has_tunnel = true;
            input.tunnel = tunnel_words(key);
        }
    }

    /// Compares the program's result with userspace's.
    fn judge(
        &mut self,
        case: &Case,
        expected: &Result<FlowKey, ParseError>,
    ) -> Result<Outcome, String> {
        let outcome = match self.variables().verdict.cast_unsigned() {
            abi::WEFT_PARSED => Outcome::Parsed,
            abi::WEFT_MALFORMED => Outcome::Malformed,
            abi::WEFT_UPCALL => Outcome::Upcall,
            other => return Err(format!("verdict {other} on {case:?}")),
        };
        let key = words(&self.variables().key);
        match (outcome, expected) {
            (Outcome::Parsed, Ok(expected)) if KernelKey::from(expected) == key => Ok(outcome),
            (Outcome::Malformed, Err(_)) | (Outcome::Upcall, _) => Ok(outcome),
            (Outcome::Parsed, Ok(expected)) => {
                let kernel = KernelKey::from(expected);
                Err(format!("{case:?}\nuserspace {kernel:?} of {expected:?}\nkernel    {key:?}"))
            }
            _ => Err(format!("{case:?}\nuserspace {expected:?}\nkernel {outcome:?}, {key:?}")),
        }
    }

    fn variables(&mut self) -> &mut generated::types::bss {
        self.skel.maps.bss_data.as_deref_mut().expect("the program has variables")
    }
}

fn extract(case: &Case) -> Result<FlowKey, ParseError> {
    flow::extract(&PacketBuf::from_bytes(&case.frame), case.port, case.tunnel.as_ref())
}
/// The tunnel part of a key, in the form of `struct tunnel` in `bpf/key.h`.
fn tunnel_words(key: &FlowKey) -> tunnel {
    let words = key.words();
    let v6 = words[4..8].iter().any(|&word| word != 0);
    tunnel {
        shape: u64::from(if v6 { abi::WEFT_TUNNEL | abi::WEFT_TUNNEL6 } else { abi::WEFT_TUNNEL }),
        id: words[1],
        flags: words[3],
        metadata: words[8],
        addr: if v6 { [words[4], words[5], words[6], words[7]] } else { [words[2], 0, 0, 0] },
    }
}

/// The outer tag, if the case wants it in metadata and its TPID allows that, and the frame without
/// it.
fn strip(case: &Case) -> (u32, Vec<u8>) {
    match case.frame[12..] {
        [a @ (0x81 | 0x88), b @ (0x00 | 0xa8), c, d, _, _, ..]
            if case.strip && matches!((a, b), (0x81, 0) | (0x88, 0xa8)) =>
        {
            let rest = &case.frame[16..];
            (u32::from_be_bytes([a, b, c, d]), [&case.frame[..12], rest].concat())
        }
        _ => (0, case.frame.clone()),
    }
}

/// The words of a key.
pub fn words(key: &weft_key) -> KernelKey {
    let &weft_key { port, eth_dst, eth_src, vlan, ip, transport, .. } = key;
    let head = [port, eth_dst, eth_src, vlan, ip, transport];
    let tunnel = [key.tun_id, key.tun_flags, key.tun_metadata];
    let all = head.iter().chain(&key.l3).chain(&key.nd).chain(&tunnel).chain(&key.tun_addr);
    let mut words = [0; size_of::<weft_key>() / 8];
    words.iter_mut().zip(all).for_each(|(word, value)| *word = *value);
    KernelKey::from_words(words)
}

/// Results by kind of frame. It is shown as rows of a table.
#[derive(Default)]
pub struct Tally(BTreeMap<(&'static str, Outcome), u64>);

impl Tally {
    pub fn add(&mut self, case: &Case, outcome: Outcome) {
        *self.0.entry((case.kind, outcome)).or_default() += 1;
    }

    /// Share of all frames.
    pub fn share(&self, outcome: Outcome) -> f64 {
        let of = self.0.iter().filter(|((_, o), _)| *o == outcome).map(|(_, n)| n).sum::<u64>();
        of as f64 / self.0.values().sum::<u64>() as f64
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((kind, outcome), count) in &self.0 {
            writeln!(f, "| frames, {kind} | {outcome:?} | {count} |")?;
        }
        Ok(())
    }
}
