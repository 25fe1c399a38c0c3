//! Meters: limits on the packets that flows pass to services (control plane protection).

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
        let row = Meter::from_row(row)?;
        // northd creates one band for each meter.
        let band = row.bands.iter().find_map(|uuid| replica.get::<MeterBand>(*uuid))?;
        let number = |number: i64| u64::try_from(number).unwrap_or(0).max(1);
        let (rate, burst) = (number(band.rate), band.burst_size);
        Some(Arc::new(NamedMeter {
            name: name.to_string(),
            unit: if &*row.unit == "kbps" { MeterUnit::Kilobits } else { MeterUnit::Packets },
            rate,
            // As in Open vSwitch, a burst of 0 means the packets of one second.
            burst: if burst > 0 { number(burst) } else { rate },
        }))
    }
}
