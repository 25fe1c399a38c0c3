//! The database `_Server`: a server's information about itself (ovsdb-server(5)).

use super::config::Config;
use super::event::Unsuitable;
use crate::condition::{Clause, Condition, Function};
use crate::replica::Replica;
use crate::request::TableRequest;
use crate::schema::{Schema, SchemaError};
use crate::table::Table;
use crate::uuid::Uuid;
use std::sync::Arc;

/// The name of the database.
pub(super) const SERVER_DATABASE: &str = "_Server";

/// The columns of the table `Database`, as every server since OVS 2.9 has them.
const SCHEMA: &str = r#"{"name": "_Server", "tables": {"Database": {"columns": {
    "name": {"type": "string"},
    "model": {"type": "string"},
    "connected": {"type": "boolean"},
    "leader": {"type": "boolean"},
    "schema": {"type": {"key": "string", "min": 0}},
    "cid": {"type": {"key": "uuid", "min": 0}},
    "sid": {"type": {"key": "uuid", "min": 0}},
    "index": {"type": {"key": "integer", "min": 0}}}}}}"#;

crate::table! {
    /// A server's information about a database that it serves.
    pub struct ServerInfo: "Database" {
        /// The database's name.
        pub name: "name" => Arc<str>,
        /// `standalone`, `clustered` or `relay`.
        pub model: "model" => Arc<str>,
        /// The server is in contact with a majority of its cluster, or with its relay source.
        pub is_connected: "connected" => bool,
        /// The server is the leader of its cluster.
        pub is_leader: "leader" => bool,
        /// The schema as JSON text; absent until the server has joined its cluster.
        pub schema: "schema" => Option<Arc<str>>,
        /// The cluster.
        pub cluster_id: "cid" => Option<Uuid>,
        /// The server within its cluster.
        pub server_id: "sid" => Option<Uuid>,
        /// The index of the last raft log entry that the server has applied.
        pub index: "index" => Option<i64>,
    }
}

impl ServerInfo {
    /// True if the server has lost its cluster or relay source.
    pub(super) fn is_cut_off(&self) -> bool {
        !self.is_standalone() && !self.is_connected
    }

    /// True if the database is neither clustered nor relayed.
    pub fn is_standalone(&self) -> bool {
        &*self.model == "standalone"
    }
}

/// The used part of the schema of `_Server`.
pub(super) fn schema() -> Result<Schema, SchemaError> {
    Schema::from_text(SCHEMA.as_bytes())
}

/// The request for the row of a database.
pub(super) fn request(database: &str) -> TableRequest {
    let condition = Condition::any([Clause::new("name", Function::Equals, database)]);
    ServerInfo::request().matching(condition)
}

/// The newest state of a cluster that a session has seen.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct SeenCluster {
    cluster_id: Option<Uuid>,
    index: i64,
}

impl SeenCluster {
    /// True if the session has seen this server's cluster before, so that it detects a server that
    /// is behind. A relay has no raft index.
    pub fn knows_cluster(&self, info: &ServerInfo) -> bool {
        info.index.is_some() && info.cluster_id.is_some() && info.cluster_id == self.cluster_id
    }

    /// Checks that a session may use a server, and remembers its raft index.
    ///
    /// The index belongs to one cluster. When operators rebuild a cluster, its identifier changes,
    /// and its index starts again.
    pub fn check(&mut self, config: &Config, server: &Replica) -> Result<ServerInfo, Unsuitable> {
        let found = server.rows::<ServerInfo>().map(|(_, info)| info);
        let Some(info) = found.into_iter().find(|info| *info.name == *config.database) else {
            return Err(Unsuitable::NoDatabase(config.database.to_string()));
        };
        if info.schema.is_none() {
            return Err(Unsuitable::NotJoined);
        }
        let is_standalone = info.is_standalone();
        if !is_standalone && config.leader_only && !info.is_leader {
            return Err(Unsuitable::NotLeader);
        }
        if let Some(expected) = config.cluster_id
            && info.cluster_id != Some(expected)
        {
            let found = info.cluster_id.unwrap_or_default();
            return Err(Unsuitable::OtherCluster { expected, found });
        }
        if let Some(index) = info.index {
            let seen = if info.cluster_id == self.cluster_id { self.index } else { i64::MIN };
            if index < seen {
                return Err(Unsuitable::Stale { index, seen });
            }
            *self = Self { cluster_id: info.cluster_id, index };
        }
        Ok(info)
    }
}
