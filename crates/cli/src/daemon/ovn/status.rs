//! [`OvnStatus`]: the lines of `weft show` about OVN.

use super::LOCK;
use doctor::choice::Decision;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The facts about OVN for `weft show`.
#[derive(Debug, Default)]
pub struct OvnStatus {
    pub southbound: String,
    pub flows: usize,
    pub bad_flows: usize,
    pub bad: Vec<(String, String)>,
    pub nb_cfg: Option<i64>,
    pub has_lock: bool,
    /// The values of this host's template variables.
    pub templates: BTreeMap<Arc<str>, Arc<str>>,
    pub progress: Progress,
}

/// The progress of the switch in following the databases, for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The connection to the local database is ready.
    pub is_local_connected: bool,
    /// The connection to the southbound database is ready.
    pub is_southbound_connected: bool,
    /// The last network stays in use, because the southbound database is empty.
    pub holds_network: bool,
    /// The `nb_cfg` that was read from the southbound database.
    pub read_nb_cfg: Option<i64>,
    /// When the oldest change arrived that is not installed yet.
    pub pending_since: Option<Instant>,
    /// The number of installed configurations.
    pub installed: u64,
    /// The number of failed installations.
    pub failed: u64,
}

/// The maximum number of flows that `weft show` names.
pub const MAX_NAMED: usize = 20;

impl OvnStatus {
    /// The lines of `weft show`.
    pub fn decisions(&self) -> Vec<Decision> {
        let installed = match self.nb_cfg {
            Some(cfg) => format!("installed up to nb_cfg {cfg}"),
            None => "nothing installed yet".to_owned(),
        };
        let mut all = vec![Decision::new("OVN", self.southbound.clone(), installed)];
        if !self.has_lock {
            let why = format!("another process, such as ovs-vswitchd, has its lock {LOCK}");
            all.push(Decision::new("local database", "not written", why));
        }
        let how = format!("{} in force, {} left out", self.flows, self.bad_flows);
        let why = match self.bad_flows {
            0 => "weft executes all of them",
            _ => "weft cannot compile these; packets meet the other flows of their tables",
        };
        all.push(Decision::new("logical flows", how, why));
        let named = self.bad.iter().map(|(flow, why)| {
            Decision::new("logical flow", format!("left out {flow}"), why.clone())
        });
        all.extend(named);
        all
    }
}
