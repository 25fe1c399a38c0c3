//! Takes an [`Observation`] for metrics.

use super::{Daemon, OvnStatus};
use crate::metrics::{Observation, OvnFacts, ProcessFacts};
use datapath::DatapathError;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

impl Daemon {
    /// The facts from which all metrics are computed.
    ///
    /// # Errors
    /// The datapath has ended, or does not reply.
    pub fn observe(&self) -> Result<Observation, DatapathError> {
        let begin = Instant::now();
        // Locked before the counters are read, so that an older snapshot cannot follow a newer one.
        let mut port_drops = self.port_drops.lock().unwrap_or_else(PoisonError::into_inner);
        let mut show = self.snapshot()?;
        let is_ovn = self.deployment().network.is_none();
        Ok(Observation {
            port_drops: port_drops.sums(&show.ports),
            tunnels: self.tunnels(&mut show),
            show,
            switch: self.switch.stats(),
            megaflow_limit: self.deployment().config.megaflows,
            connections: self.connection_totals(),
            connection_use: self.connection_use_rows(),
            ovn: is_ovn.then(|| self.ovn.lock().unwrap_or_else(PoisonError::into_inner).facts()),
            process: ProcessFacts::read(),
            took: begin.elapsed(),
        })
    }
}

impl OvnStatus {
    fn facts(&self) -> OvnFacts {
        let progress = self.progress;
        OvnFacts {
            is_local_connected: progress.is_local_connected,
            is_southbound_connected: progress.is_southbound_connected,
            has_lock: self.has_lock,
            holds_network: progress.holds_network,
            read_nb_cfg: progress.read_nb_cfg,
            installed_nb_cfg: self.nb_cfg,
            lag: progress.pending_since.map_or(Duration::ZERO, |since| since.elapsed()),
            flows: self.flows,
            bad_flows: self.bad_flows,
            installed: progress.installed,
            failed: progress.failed,
        }
    }
}
