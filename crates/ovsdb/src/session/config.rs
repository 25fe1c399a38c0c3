//! [`Config`]: the servers that a session connects to, and the tables that it replicates.

use crate::limits::Limits;
use crate::remote::Remote;
use crate::request::TableRequest;
use crate::update::MonitorMethod;
use crate::uuid::Uuid;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The servers that a session connects to, and the tables that it replicates.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The database, such as `OVN_Southbound`.
    pub database: Arc<str>,
    /// The servers of the database. The session uses one at a time, starting with a random one.
    pub remotes: Vec<Remote>,
    /// The tables to replicate. Without any, a session only sends transactions.
    pub tables: Vec<TableRequest>,
    /// Accepts only the leader of a cluster. A follower serves reads and writes as well; it is a
    /// few milliseconds behind, and it spreads the load.
    pub leader_only: bool,
    /// Accepts only servers of this cluster.
    pub cluster_id: Option<Uuid>,
    /// A lock to hold, if possible, on every connection (RFC 7047 section 4.1.8).
    pub lock: Option<String>,
    /// The newest method to use.
    pub method: MonitorMethod,
    /// Bounds.
    pub limits: Limits,
    /// Times.
    pub times: Times,
    /// The seed of jitter and of the order of remotes. Give each client a different one.
    pub seed: u64,
}

/// The times of a session. None is longer than a day.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// A server that sends nothing for this long is sent an echo request; if it sends nothing for
    /// as long again, it is disconnected. `None` disables that.
    pub probe_interval: Option<Duration>,
    /// The interval while the server prepares the reply to a monitor request. A server with a big
    /// database sends nothing else meanwhile.
    pub sync_interval: Duration,
    /// How long a server may be without its cluster until the session tries another one. An
    /// election of a leader takes one to a few times the election timer of the cluster.
    pub election_patience: Duration,
    /// How long a connection may take to be established.
    pub connect_timeout: Duration,
    /// The shortest time between rounds over all remotes, without jitter.
    pub min_backoff: Duration,
    /// The longest time between rounds. It doubles from the shortest.
    pub max_backoff: Duration,
}

impl Times {
    fn check(self) -> Result<(), ConfigError> {
        const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
        let times = [
            ("probe_interval", self.probe_interval.unwrap_or_default()),
            ("sync_interval", self.sync_interval),
            ("election_patience", self.election_patience),
            ("connect_timeout", self.connect_timeout),
            ("min_backoff", self.min_backoff),
            ("max_backoff", self.max_backoff),
        ];
        match times.into_iter().find(|(_, time)| *time > LONGEST) {
            Some((name, _)) => Err(ConfigError::Time { name }),
            None => Ok(()),
        }
    }
}

impl Default for Times {
    /// Probes after 5 s (60 s while a dump is prepared), leaves a server without a cluster after
    /// 10 s, connects within 10 s, waits 1 to 8 s.
    fn default() -> Self {
        Self {
            probe_interval: Some(Duration::from_secs(5)),
            sync_interval: Duration::from_secs(60),
            election_patience: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            min_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(8),
        }
    }
}

/// Why a configuration is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A table occurs twice.
    #[error("the table {table} is requested twice: merge the requests")]
    DuplicateTable {
        /// The table.
        table: Arc<str>,
    },
    /// An index has no columns, or its name occurs twice in a table.
    #[error("the index {index} of {table} is requested twice or has no columns")]
    BadIndex {
        /// The table.
        table: Arc<str>,
        /// The index.
        index: Arc<str>,
    },
    /// A limit is zero or too great.
    #[error("the limit {name} is out of range")]
    Limit {
        /// The limit.
        name: &'static str,
    },
    /// A time is longer than a day.
    #[error("the time {name} is longer than a day")]
    Time {
        /// The time.
        name: &'static str,
    },
}

impl Config {
    /// A configuration without tables, with default limits and times, and seed 0.
    pub fn new(database: &str, remotes: impl IntoIterator<Item = Remote>) -> Self {
        Self {
            database: database.into(),
            remotes: remotes.into_iter().collect(),
            tables: Vec::new(),
            leader_only: false,
            cluster_id: None,
            lock: None,
            method: MonitorMethod::MonitorCondSince,
            limits: Limits::default(),
            times: Times::default(),
            seed: 0,
        }
    }

    /// Adds a table.
    #[must_use]
    pub fn table(mut self, request: TableRequest) -> Self {
        self.tables.push(request);
        self
    }

    /// Sets the seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let mut tables = HashSet::new();
        for request in &self.tables {
            let table = || Arc::clone(&request.name);
            if !tables.insert(&request.name) {
                return Err(ConfigError::DuplicateTable { table: table() });
            }
            let mut names = HashSet::new();
            for index in &request.indexes {
                if index.columns.is_empty() || !names.insert(&index.name) {
                    let index = Arc::clone(&index.name);
                    return Err(ConfigError::BadIndex { table: table(), index });
                }
            }
        }
        let Limits { message_bytes, update_bytes, depth, rows, requests, unsent_bytes } =
            self.limits;
        // The session itself needs a dozen levels and requests.
        let checks = [
            ("message_bytes", message_bytes >= 1024),
            ("update_bytes", update_bytes >= 1024),
            ("depth", (12..=Limits::MAX_DEPTH).contains(&depth)),
            ("rows", rows >= 1),
            ("requests", requests >= 1),
            ("unsent_bytes", unsent_bytes >= 1024),
        ];
        self.times.check()?;
        match checks.into_iter().find(|(_, is_ok)| !is_ok) {
            Some((name, _)) => Err(ConfigError::Limit { name }),
            None => Ok(()),
        }
    }
}
