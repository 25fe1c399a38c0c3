//! Conditions that a frame must meet to have a field. The rows are in `field/table.rs`.

/// A type of frame that meets a [`Prerequisite`](super::Prerequisite).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameKind {
    /// The EtherType.
    pub eth_type: u16,
    /// The accepted IP protocols; empty when the protocol does not matter.
    pub ip_protos: &'static [u8],
}

/// The condition that a [`Prerequisite`](super::Prerequisite) stands for.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    /// The required frame, in words.
    pub description: &'static str,
    /// The frames that meet the prerequisite; empty when the EtherType does not matter.
    pub frame_kinds: &'static [FrameKind],
    /// The accepted ICMPv6 types, of messages with code 0; empty when type and code do not matter.
    pub icmp_types: &'static [u8],
    /// The predicate of OVN's language: empty for any frame, `None` when OVN has no predicate.
    pub ovn: Option<&'static str>,
    /// The text that a match of ovs-ofctl needs to meet the prerequisite, for error messages.
    pub ofctl: &'static str,
}

/// Generates the enumeration `Prerequisite` and the table of requirements.
macro_rules! prerequisites {
    ($($(#[doc = $doc:literal])+ $variant:ident = $row:expr,)+) => {
        /// The condition under which a frame has a field.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Prerequisite {
            $($(#[doc = $doc])+ $variant,)+
        }

        static REQUIREMENTS: &[Requirement] = &[$($row,)+];

        impl Prerequisite {
            /// The condition that the prerequisite stands for.
            pub fn requirement(self) -> &'static Requirement {
                &REQUIREMENTS[self as usize]
            }
        }
    };
}

pub(super) use prerequisites;

pub(super) const fn kind(eth_type: u16, ip_protos: &'static [u8]) -> FrameKind {
    FrameKind { eth_type, ip_protos }
}

pub(super) const fn requires(
    description: &'static str,
    frame_kinds: &'static [FrameKind],
    ofctl: &'static str,
) -> Requirement {
    Requirement { description, frame_kinds, icmp_types: &[], ovn: None, ofctl }
}

impl Requirement {
    pub(super) const fn ovn(self, predicate: &'static str) -> Self {
        Self { ovn: Some(predicate), ..self }
    }

    pub(super) const fn icmp_types(self, icmp_types: &'static [u8]) -> Self {
        Self { icmp_types, ..self }
    }
}
