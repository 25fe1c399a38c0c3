//! What a starting daemon reads from pinned maps: the megaflows of the last one, which it adopts.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use datapath::none::NoDatapath;
use datapath_bpf::KernelMatch;
use datapath_bpf::lab::{PINNED_ENTRY_LEN, pinned_condition};
use flow::TunnelType;
use switch::{Config, Engine};

use crate::switch::program_of;

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let datapath = NoDatapath::new("here".to_owned(), "uplink".to_owned(), Vec::new());
    let program = program_of(TunnelType::Geneve).clone();
    Engine::new(Arc::new(datapath), program, &Config::default())
});

/// An input: a megaflow whose mask is the first.
pub fn entry(megaflow: &KernelMatch) -> Vec<u8> {
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut input: Vec<u8> = bytes(megaflow.key().words());
    input.resize(PINNED_ENTRY_LEN, 0);
    input.extend::<Vec<u8>>(bytes(megaflow.mask().words()));
    input
}

/// Adopts the megaflow of an entry and masks. Returns whether it was adopted; `None` if it has no
/// mask.
pub fn megaflow(bytes: &[u8]) -> Option<bool> {
    let (entry, masks) = bytes.split_at(bytes.len().min(PINNED_ENTRY_LEN));
    let condition = pinned_condition(entry, masks)?;
    // The values outside the mask are not known.
    assert!(condition.matches(condition.key()));
    let adopted = ENGINE.adopt(std::iter::once(condition), Instant::now());
    let adopted = adopted.expect("the datapath has not stopped");
    ENGINE.delete_megaflows().expect("the datapath has not stopped");
    assert_eq!(ENGINE.stats().megaflows, 0);
    Some(adopted == 1)
}
