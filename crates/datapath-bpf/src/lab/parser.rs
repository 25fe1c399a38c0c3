//! [`TestParser`]: the parser of the programs, in test runs of the kernel.

use super::{PARSED_LEAST, PARSED_MOST};
use crate::abi;
use crate::key::KernelKey;
use crate::layout::WORDS;
use flow::PortNo;
use generated::{TestExtractSkel, TestExtractSkelBuilder, types};
use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use std::io;
use std::mem::MaybeUninit;

/// The skeleton contains `unsafe` for memory that it shares with the kernel, and ignores lints.
#[allow(unsafe_code, warnings, missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/test_extract.skel.rs"));
}

/// The parser's result for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParserVerdict {
    /// The frame has this key.
    Key(KernelKey),
    /// The frame has no key.
    Malformed,
    /// Userspace has to parse the frame.
    Left,
}

/// The parser of `bpf/parse.h`, loaded in a program that is attached nowhere. It stays loaded until
/// the process ends.
pub struct TestParser {
    skel: TestExtractSkel<'static>,
}

impl std::fmt::Debug for TestParser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestParser").finish_non_exhaustive()
    }
}

impl TestParser {
    /// Loads the program.
    ///
    /// # Errors
    /// The process lacks a privilege.
    pub fn load() -> io::Result<Self> {
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let open = TestExtractSkelBuilder::default().open(object);
        open.and_then(OpenSkel::load).map(|skel| Self { skel }).map_err(io::Error::other)
    }

    /// Parses a frame from a port.
    ///
    /// # Errors
    /// The kernel cannot make the frame, for example because it is shorter than an Ethernet header
    /// or longer than 2,048 bytes.
    pub fn parse(&mut self, frame: &[u8], port: PortNo) -> io::Result<ParserVerdict> {
        if frame.len() > PARSED_MOST {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let variables = self.variables()?;
        variables.in_port = port.0;
        variables.has_tunnel = false;
        variables.stripped_tag = 0;
        variables.frame_len = frame.len() as u32;
        // Test runs refuse short frames. These are extended here, and the program cuts them to
        // `frame_len`.
        let mut bytes = frame.to_vec();
        bytes.resize(frame.len().max(PARSED_LEAST), 0xa5);
        let input = ProgramInput { data_in: Some(&bytes), ..ProgramInput::default() };
        self.skel.progs.test_extract.test_run(input).map_err(io::Error::other)?;
        let variables = self.variables()?;
        match variables.verdict.cast_unsigned() {
            abi::WEFT_PARSED => Ok(ParserVerdict::Key(key_of(&variables.key))),
            abi::WEFT_MALFORMED => Ok(ParserVerdict::Malformed),
            abi::WEFT_UPCALL => Ok(ParserVerdict::Left),
            other => Err(io::Error::other(format!("verdict {other}"))),
        }
    }

    fn variables(&mut self) -> io::Result<&mut types::bss> {
        let variables = self.skel.maps.bss_data.as_deref_mut();
        variables.ok_or_else(|| io::Error::other("the program has no variables"))
    }
}

/// Converts a key of the program, word by word.
fn key_of(key: &types::weft_key) -> KernelKey {
    let &types::weft_key { port, eth_dst, eth_src, vlan, ip, transport, .. } = key;
    let head = [port, eth_dst, eth_src, vlan, ip, transport];
    let tunnel = [key.tun_id, key.tun_flags, key.tun_metadata];
    let all = head.iter().chain(&key.l3).chain(&key.nd).chain(&tunnel).chain(&key.tun_addr);
    let mut words = [0; WORDS];
    words.iter_mut().zip(all).for_each(|(word, value)| *word = *value);
    KernelKey::from_words(words)
}
