//! A client for OVSDB, the database protocol of Open vSwitch and OVN: RFC 7047 with the extensions
//! of ovsdb-server(7).
//!
//! The client keeps a **replica**: the rows of the tables, columns and conditions that it asked
//! for, as they were after one of the server's transactions. It reports every change of a row with
//! the old and the new row, and sends transactions.
//!
//! ```no_run
//! use ovsdb::{Config, Event, Table, io::Client};
//!
//! ovsdb::table! {
//!     /// A bridge.
//!     pub struct Bridge: "Bridge" {
//!         pub name: "name" => String,
//!         pub datapath_type: "datapath_type" => String,
//!     }
//! }
//!
//! let remote = "unix:/run/openvswitch/db.sock".parse().unwrap();
//! let config = Config::new("Open_vSwitch", [remote]).table(Bridge::request());
//! let mut client = Client::new(config, None).unwrap();
//! loop {
//!     match client.next_event(None) {
//!         Some(Event::Update(update)) => {
//!             for change in update.changes {
//!                 if let Some((old, new)) = change.typed::<Bridge>() {
//!                     println!("{old:?} -> {new:?}");
//!                 }
//!             }
//!         }
//!         Some(Event::Disconnected { remote, reason }) => eprintln!("{remote}: {reason}"),
//!         _ => {}
//!     }
//! }
//! ```
//!
//! # Layers
//!
//! | layer | what it does | I/O |
//! |---|---|---|
//! | [`framing`] | splits bytes into messages, and table updates into rows | none |
//! | [`schema`], [`datum`] | types and values of columns, and their decoding | none |
//! | [`replica`] | rows by table, indexes, changes | none |
//! | [`session`] | the protocol: handshake, monitors, transactions, reconnection | none |
//! | [`io`] | sockets: Unix, TCP, TLS | all of it |
//!
//! A [`Session`] takes bytes and the time, and yields bytes, events and deadlines. It can be driven
//! by any event loop, and tested without a network. [`io::Client`] drives it with `poll`, in the
//! thread of the caller. There is no asynchronous runtime: a client has one socket, and one
//! thread can wait for it.
//!
//! # Connections
//!
//! - The session first monitors the database `_Server`. It leaves a server that has not joined its
//!   cluster, has lost it, or whose raft index is behind what the session has seen. It accepts
//!   followers unless [`Config::leader_only`] is set. When a cluster is rebuilt, its identifier
//!   changes and the index starts again; [`Config::cluster_id`] excludes that.
//! - Then it monitors the data: with `monitor_cond_since` (OVS 2.12), `monitor_cond` (2.6), or
//!   `monitor`. After a reconnection to a clustered database, `monitor_cond_since` sends only the
//!   changes since the last transaction. [`UpdateKind`] tells which of both the server sent.
//! - The replica stays while there is no connection. A new dump is compared with it; only rows that
//!   differ are reported. The replica changes only by complete messages, so its state is always
//!   one that the server had (for its conditions).
//! - Both sides send echo requests. The session leaves a server that does not reply after twice
//!   [`Times::probe_interval`]. Each remote is tried once without delay. Then the delay doubles
//!   from [`Times::min_backoff`] to [`Times::max_backoff`], with jitter.
//! - A converted database (new schema) is monitored again, on the same connection.
//!
//! # Transactions
//!
//! [`Session::transact`] works when the replica is complete. The changes that a transaction makes
//! arrive before its outcome. If the connection is lost first, the outcome is
//! [`TransactOutcome::Lost`]: the client cannot know whether the server executed it. The session
//! never repeats a transaction by itself. A transaction with a `wait` operation
//! ([`Transaction::wait_for_row`], [`Transaction::wait_until_absent`]) can be repeated safely: if
//! the first attempt was executed, the second fails with `timed out`.
//!
//! # Bounds
//!
//! [`Limits`] bound messages, nesting, rows, requests and unsent bytes. A server that exceeds one
//! is disconnected, and the reason names the limit. Each row of a table update is decoded when it
//! is complete, and its text is dropped. So a dump of a big database needs memory for the rows and
//! for one row's text, and never for the text of all. While a dump replaces an old replica, both
//! are in memory.
//!
//! # Features
//!
//! `io` adds [`io`]; `tls`, the default, adds TLS to it. Without features, there is the core only.
#![forbid(unsafe_code)]

mod condition;
pub mod datum;
pub mod framing;
#[cfg(feature = "io")]
pub mod io;
mod layout;
mod limits;
mod message;
mod remote;
pub mod replica;
mod request;
mod row;
pub mod schema;
pub mod session;
mod table;
mod transaction;
mod update;
mod uuid;

pub use condition::{Clause, Condition, Function};
pub use datum::{Atom, Datum, FromAtom, FromDatum};
pub use layout::{LayoutColumn, LayoutError, TableLayout};
pub use limits::Limits;
pub use remote::{Remote, RemoteError};
pub use replica::{Replica, RowChange};
pub use request::{ColumnRequest, IndexKeys, IndexRequest, TableRequest};
pub use row::Row;
pub use schema::Schema;
pub use session::{
    Action, Config, ConfigError, DisconnectReason, Event, Reply, RequestId, SchemaMismatch,
    SendError, ServerInfo, Session, Times, Unsuitable, Update, UpdateKind,
};
pub use table::{Table, TypedColumn};
pub use transaction::{
    Mutation, OperationResult, RowValues, TransactError, TransactOutcome, Transaction,
};
pub use update::{MonitorMethod, UpdateError};
pub use uuid::{Uuid, UuidError};
