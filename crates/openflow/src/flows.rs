//! The bodies of statistics replies: the flows of a program, and the groups of its load balancers.

use crate::actions::{ActionContext, group_number, table_number};
use crate::fields::{OxmBits, emit_fields, protocol};
use crate::message::{Version, be16, pad};
use flow::{DatapathKey, Match};
use pipeline::{CtBalance, DatapathKind, Flow, Op, Program, TableId};
use std::collections::BTreeSet;

const TCP: u8 = 6;
/// The offset of the match length in a flow entry of OpenFlow 1.0.
const MATCH_LEN: usize = 18;
/// The longest entry, in bytes.
const MAX_ENTRY_LEN: usize = 32 * 1024;

/// The flows that a client requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Selection {
    /// The number of a table; `None` for all.
    pub table: Option<u8>,
    pub cookie: u64,
    pub cookie_mask: u64,
}

/// The tables of logical datapaths.
fn tables() -> impl Iterator<Item = (TableId, u8)> {
    let tables = (0..=TableId::HAIRPIN_SNAT.index())
        .filter_map(|index| TableId::bridge(u8::try_from(index).ok()?));
    tables.filter_map(|table| Some((table, table_number(table)?)))
}

/// Calls `send` with the entry of each flow. Stops when `send` fails.
pub(crate) fn each_flow<E>(
    program: &Program,
    version: Version,
    selection: Selection,
    mut send: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut keys: Vec<_> = program.datapaths().collect();
    keys.sort_unstable_by_key(|(key, _)| *key);
    let mut bytes = Vec::new();
    for (table, number) in tables() {
        if selection.table.is_some_and(|selected| selected != number) {
            continue;
        }
        for &(key, datapath) in &keys {
            for &group in &datapath.groups {
                for (condition, _, flow) in program.rules(group, table) {
                    if (flow.text.cookie ^ selection.cookie) & selection.cookie_mask != 0 {
                        continue;
                    }
                    bytes.clear();
                    let kind = datapath.kind;
                    if emit_flow(&mut bytes, version, (key, kind), number, &condition, flow) {
                        send(&bytes)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Appends the entry of a flow. Returns false if OpenFlow cannot express the flow.
fn emit_flow(
    bytes: &mut Vec<u8>,
    version: Version,
    (datapath, kind): (DatapathKey, DatapathKind),
    table: u8,
    condition: &Match,
    flow: &Flow,
) -> bool {
    if flow.residual.is_some() {
        return false;
    }
    let (packets, octets) = flow.counters.get();
    // The length, the table, and the age, which is not known.
    bytes.extend([0, 0, table, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(flow.priority.to_be_bytes());
    // Timeouts of 0; flags, or in OpenFlow 1.0 the length of the match, which is set later;
    // padding.
    bytes.extend([0; 10]);
    bytes.extend(flow.text.cookie.to_be_bytes());
    bytes.extend(packets.to_be_bytes());
    bytes.extend(octets.to_be_bytes());
    let start = bytes.len();
    if version == Version::V13 {
        bytes.extend([0, 1, 0, 0]);
    }
    if !emit_fields(bytes, datapath.0.into(), condition) {
        return false;
    }
    let len = be16(bytes.len() - start);
    let at = if version == Version::V13 { start + 2 } else { MATCH_LEN };
    bytes[at..at + 2].copy_from_slice(&len);
    pad(bytes, start);
    let start = bytes.len();
    if version == Version::V13 {
        // One instruction: apply actions.
        bytes.extend([0, 4, 0, 0, 0, 0, 0, 0]);
    }
    let protocol = protocol(condition);
    let context = ActionContext { version, flow: flow.id, table: flow.table, kind, protocol };
    context.emit(bytes, &flow.ops);
    if version == Version::V13 {
        let len = be16(bytes.len() - start);
        bytes[start + 2..start + 4].copy_from_slice(&len);
    }
    let len = bytes.len();
    bytes[..2].copy_from_slice(&be16(len));
    // Longer entries do not fit into a message.
    len <= MAX_ENTRY_LEN
}

/// Calls `send` with the description of each group. Stops when `send` fails.
pub(crate) fn each_group<E>(
    program: &Program,
    version: Version,
    mut send: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut kinds = Vec::new();
    for (_, datapath) in program.datapaths() {
        kinds.extend(datapath.groups.iter().map(|group| (*group, datapath.kind)));
    }
    kinds.sort_unstable_by_key(|(group, _)| *group);
    kinds.dedup_by_key(|(group, _)| *group);
    // A flow can have several rules, one for each part of its match. Its group is sent once.
    let mut sent = BTreeSet::new();
    for (table, _) in tables() {
        for &(group, kind) in &kinds {
            for (condition, _, flow) in program.rules(group, table) {
                let balance = flow.ops.iter().find_map(|op| match op {
                    Op::CtBalance(balance) => Some(balance),
                    _ => None,
                });
                let Some(balance) = balance.filter(|_| sent.insert(flow.id)) else { continue };
                let protocol = protocol(&condition);
                let context =
                    ActionContext { version, flow: flow.id, table: flow.table, kind, protocol };
                let entry = match version {
                    Version::V10 => group_v10(&context, balance),
                    Version::V13 => group_v13(&context, balance),
                };
                if entry.len() <= MAX_ENTRY_LEN {
                    send(&entry)?;
                }
            }
        }
    }
    Ok(())
}

/// The weight of each bucket.
const WEIGHT: u8 = 100;

/// A group as in OpenFlow 1.3.
fn group_v13(context: &ActionContext, balance: &CtBalance) -> Vec<u8> {
    // The length, and the type: select one bucket.
    let mut entry = vec![0, 0, 1, 0];
    entry.extend(group_number(context.flow).to_be_bytes());
    for backend in &balance.backends {
        let Some(actions) = context.bucket(balance, *backend) else { continue };
        entry.extend(be16(16 + actions.len()));
        // No port or group to watch, padding.
        entry.extend([0, WEIGHT, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        entry.extend(actions);
    }
    let len = be16(entry.len());
    entry[..2].copy_from_slice(&len);
    entry
}

/// A group in the format of the Open vSwitch extension for OpenFlow 1.0. It equals that of OpenFlow
/// 1.5 and includes the fields whose hash selects the bucket.
fn group_v10(context: &ActionContext, balance: &CtBalance) -> Vec<u8> {
    // The length, and the type: select one bucket.
    let mut entry = vec![0, 0, 1, 0];
    entry.extend(group_number(context.flow).to_be_bytes());
    // The length of the buckets, padding.
    entry.extend([0; 8]);
    for (number, backend) in (0_u32..).zip(&balance.backends) {
        let Some(actions) = context.bucket(balance, *backend) else { continue };
        entry.extend(be16(16 + actions.len()));
        entry.extend(be16(actions.len()));
        entry.extend(number.to_be_bytes());
        entry.extend(actions);
        // The property with the weight.
        entry.extend([0, 0, 0, 8, 0, WEIGHT, 0, 0]);
    }
    let len = be16(entry.len() - 16);
    entry[8..10].copy_from_slice(&len);
    let fields = hash_fields(context, balance);
    if !fields.is_empty() {
        let start = entry.len();
        // The property of Netronome's extension: the selection method and the hashed fields.
        entry.extend([0xff, 0xff]);
        entry.extend(be16(40 + fields.len()));
        entry.extend([0, 0, 0x15, 0x4d, 0, 0, 0, 1, 0, 0, 0, 0]);
        entry.extend(b"hash\0\0\0\0\0\0\0\0\0\0\0\0");
        entry.extend([0; 8]);
        entry.extend(fields);
        pad(&mut entry, start);
    }
    let len = be16(entry.len());
    entry[..2].copy_from_slice(&len);
    entry
}

/// The fields that are hashed, with all their bits. As in OVN, TCP ports are listed if the flow
/// matches all protocols.
fn hash_fields(context: &ActionContext, balance: &CtBalance) -> Vec<u8> {
    let mut fields = Vec::new();
    for &field in &balance.hash_fields {
        if let Some(bits) = OxmBits::new(field.into(), context.protocol.or(Some(TCP))) {
            bits.field.emit(&mut fields, flow::low_bits(field.width()));
        }
    }
    fields
}
