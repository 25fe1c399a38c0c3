//! [`ZoneCollector`]: the connection tracking zones that the flows of a bridge use.
//!
//! A switch maps each zone of each bridge to a separate zone, so that bridges and logical switches
//! never share connections. It does so in advance, so all zones must be known. If a flow reads the
//! zone from a field, the possible zones are the constants that flows load into that field, and 0.

use super::line::FlowSpec;
use flow::{Subfield, low_bits};
use pipeline::{CtZone, Op};
use std::collections::BTreeSet;

/// Zones and the fields that zones are read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ZoneCollector {
    pub zones: BTreeSet<u16>,
    fields: Vec<Subfield>,
}

impl ZoneCollector {
    /// The zones of these flows.
    pub fn of<'f>(flows: impl Iterator<Item = &'f FlowSpec> + Clone) -> Self {
        let mut found = Self::default();
        for spec in flows.clone() {
            found.add_actions(&spec.ops);
        }
        // A second pass, because a flow may load a field that only a later flow reads as a zone.
        if !found.fields.is_empty() {
            flows.for_each(|spec| found.add_loads(&spec.ops));
        }
        found
    }

    /// Adds the zones of actions. True if a zone is read from a new field. The caller must then
    /// call [`Self::add_loads`] for all flows again.
    pub fn add(&mut self, ops: &[Op]) -> bool {
        let before = self.fields.len();
        self.add_actions(ops);
        self.add_loads(ops);
        self.fields.len() > before
    }

    fn add_actions(&mut self, ops: &[Op]) {
        each(ops, &mut |op| {
            let Op::Ct(ct) = op else { return };
            match ct.zone {
                CtZone::Number(zone) => drop(self.zones.insert(zone)),
                CtZone::Bits(bits) => {
                    self.zones.insert(0);
                    if !self.fields.contains(&bits) {
                        self.fields.push(bits);
                    }
                }
                // Only logical datapaths use these zones.
                CtZone::Logical | CtZone::LogicalSnat | CtZone::Dnat | CtZone::Snat => {}
            }
        });
    }

    /// Adds the constants that these actions load into fields that zones are read from.
    pub fn add_loads(&mut self, ops: &[Op]) {
        let Self { zones, fields } = self;
        each(ops, &mut |op| {
            let Op::Load { to, value } = op else { return };
            for field in fields.iter().filter(|field| field.field() == to.field()) {
                let Some(shift) = field.first().checked_sub(to.first()) else { continue };
                if shift + field.width() <= to.width() {
                    // The cast is lossless: zones are read from 16 bits.
                    zones.insert((value >> shift & low_bits(field.width())) as u16);
                }
            }
        });
    }
}

/// Visits all steps, including the steps inside `clone`.
fn each(ops: &[Op], visit: &mut impl FnMut(&Op)) {
    let mut lists = vec![ops];
    while let Some(list) = lists.pop() {
        for op in list {
            visit(op);
            if let Op::Clone(inner) = op {
                lists.push(inner);
            }
        }
    }
}
