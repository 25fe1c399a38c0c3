//! Meters: limits on the packets that flows pass to services (control plane protection), and on the
//! log records of ACLs.
//!
//! ACLs name a meter in their action `log`. northd makes one for each ACL, `NAME__UUID`, if the
//! meter `NAME` is to count for each ACL by itself.

use super::{Changes, ProgramBuilder};
use crate::tables::{LogicalFlow, Meter, MeterBand, index};
use flow::{MeterUnit, NamedMeter};
use ovsdb::{Atom, Replica, Table, Uuid};
use std::sync::Arc;

impl ProgramBuilder {
    /// The flows to compile again because meters have changed.
    pub(super) fn flows_of_meters(&self, changes: &Changes<'_>) -> Vec<Uuid> {
        let is_other = changes.of::<Meter>().chain(changes.of::<MeterBand>()).next().is_some();
        if is_other { self.metered.iter().copied().collect() } else { Vec::new() }
    }

    /// The meter that a flow names. Without one, its packets are not limited.
    pub(super) fn meter_of(
        &mut self,
        replica: &Replica,
        uuid: Uuid,
        flow: &LogicalFlow,
    ) -> Option<Arc<NamedMeter>> {
        let Some(name) = flow.controller_meter.as_ref().filter(|name| !name.is_empty()) else {
            self.metered.remove(&uuid);
            return None;
        };
        self.metered.insert(uuid);
        let by_name = replica.table(Meter::NAME)?.index(index::NAME)?;
        let row = by_name.find_atom(Atom::String(name.clone())).next()?;
        named_meter(replica, &Meter::from_row(row)?).map(Arc::new)
    }

    /// Reads all meters again if one has changed.
    pub(super) fn update_meters(&mut self, replica: &Replica, changes: &Changes<'_>) {
        if changes.of::<Meter>().chain(changes.of::<MeterBand>()).next().is_some() {
            let rows = replica.rows::<Meter>();
            self.meters = rows.filter_map(|(_, row)| named_meter(replica, &row)).collect();
        }
    }

    /// All meters that have a rate.
    pub fn meters(&self) -> &Arc<[NamedMeter]> {
        &self.meters
    }
}

/// The meter of a row; `None` if it has no rate.
fn named_meter(replica: &Replica, row: &Meter) -> Option<NamedMeter> {
    // northd makes one band for each meter.
    let band = row.bands.iter().find_map(|uuid| replica.get::<MeterBand>(*uuid))?;
    let number = |number: i64| u64::try_from(number).unwrap_or(0).max(1);
    let (rate, burst) = (number(band.rate), band.burst_size);
    Some(NamedMeter {
        name: row.name.to_string(),
        unit: if &*row.unit == "kbps" { MeterUnit::Kilobits } else { MeterUnit::Packets },
        rate,
        // As in Open vSwitch, a burst of 0 is that of one second.
        burst: if burst > 0 { number(burst) } else { rate },
    })
}
