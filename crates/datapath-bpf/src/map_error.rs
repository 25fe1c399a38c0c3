//! [`MapError`]: why an update of the programs' maps failed.

use crate::flow_tables::FlowNo;

/// Why an update of the programs' maps failed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// All entries for megaflows are in use.
    #[error("map weft_flows is full: raise --megaflows")]
    FlowsFull,
    /// All masks are in use.
    #[error("map weft_masks is full")]
    MasksFull,
    /// All entries for action lists are in use.
    #[error("map weft_actions is full")]
    ActionListsFull,
    /// A map of end points, tunnels or links is full.
    #[error("no room for {0}")]
    Full(&'static str),
    /// The chain of a hash bucket is full, which a secret hash makes improbable.
    #[error("a hash chain of megaflows is full")]
    ChainFull,
    /// The megaflow does not exist.
    #[error("megaflow {0:?} does not exist")]
    NoSuchFlow(FlowNo),
    /// The object has no map or program of this name.
    #[error("the BPF object has no map or program {0}")]
    Missing(&'static str),
    /// A control program returned an error.
    #[error("a BPF control program failed: error {0}")]
    Refused(i32),
    /// The kernel returned an error.
    #[error(transparent)]
    Kernel(#[from] libbpf_rs::Error),
}

impl MapError {
    /// True if there is no room for the megaflow. Deleted entries may make room after a grace
    /// period.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::FlowsFull | Self::MasksFull | Self::ChainFull)
    }
}
