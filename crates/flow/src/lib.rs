//! The types that all parts of the switch share, and the reference implementation of the datapath.
//!
//! The types are identifiers, [`Action`]s, [`DropReason`]s, and tunnel end points with their header
//! templates. The reference implementation does encapsulation, decapsulation and action execution.
//!
//! No I/O and no clock. A datapath provider may use a faster implementation, but must put the same
//! bytes on the wire as [`execute()`].
#![forbid(unsafe_code)]

mod action;
mod conntrack;
mod decap;
mod drop_reason;
mod encap;
mod encap_interface;
mod endpoint;
mod execute;
mod extract;
mod field;
mod header_template;
mod id;
mod inner_flow;
mod key;
mod key_edit;
mod mss;
mod ovs_text;
mod quoted;
mod reply;
mod rewrite;
mod sctp_abort;
mod send;
mod serve;
mod show;
mod tag_link;
mod too_big;
pub mod tun_flags;
mod tunnel;
mod tunnel_info;

pub use action::{
    AclVerdict, Action, LogPriority, LogRecord, LogicalPorts, MeterUnit, NamedMeter, Reply,
    TunnelKey,
};
pub use conntrack::{
    CtAction, CtCommit, CtNat, MAX_PASSES, NatRange, RecircId, Recirculation, Rewrite, SteadyPass,
    TrackResult, WeakRecirculation, ct_state,
};
pub use decap::{Decapped, OuterIp, propagate_ecn, propagate_ecn_in_slice, strip_outer};
pub use drop_reason::{DropCounters, DropReason};
pub use encap::{Encapsulated, OuterHeaders};
pub use endpoint::{
    Dscp, Endpoint, EndpointError, EndpointTable, NextHop, PacketCounter, Ttl, TunnelSpec,
};
pub use execute::{ActionOutput, CtProgress, MAX_NESTING, execute, pop_vlan, push_vlan};
pub use extract::extract;
pub use field::{
    Access, ETH_TYPE_NONE, FOREIGN_FIELDS, FRAG_FIRST, FRAG_LATER, Field, FieldSpec, FrameKind,
    KERNEL_WORDS, KernelMember, KernelShape, KernelWord, Notation, OfctlName, OfctlSyntax, OvnKind,
    OvnSymbol, OxmHeader, PACKET_WORDS, Prerequisite, Requirement, STAGES, Subfield, TAG_PRESENT,
    TRACKED_WORDS, WORDS, low_bits,
};
pub use header_template::HeaderTemplate;
pub use id::{DatapathKey, EndpointId, PortKey, PortNo};
pub use inner_flow::{EntropySeed, InnerFlow};
pub use key::{FlowKey, FlowMask, Match};
pub use key_edit::KeyEdit;
pub use mss::clamp_mss;
pub use ovs_text::OvsText;
pub use quoted::{QuotedField, set_quoted_field};
pub use rewrite::{set_field, set_icmp_ident};
pub use serve::{answer, answer_edits};
pub use show::{ShowActions, ShowMasked, ShowValue};
pub use tag_link::{TagLink, TagLinks};
pub use too_big::{ReplyAddresses, too_big};
pub use tunnel::stt::{SttSegment, decap_stt, strip_stt_segment};
pub use tunnel::{
    Carrier, DecapOptions, DeviceOffloads, HeaderLen, KernelDatapath, LogicalPortsField, NetworkId,
    OptionKind, TSO, TSO6, TunnelDescriptor, TunnelOption, TunnelSettings, TunnelType,
    UnknownTunnelType,
};
pub use tunnel_info::{TUNNEL_OPTIONS, TlvMap, TlvMapError, TlvOption, TunnelInfo, TunnelOptions};
