//! A host of an OVN deployment (a *chassis*): what it reads from the local database and from OVN's
//! southbound database, and what it writes there.
//!
//! ```text
//! Open_vSwitch:     settings, interfaces ---> local ports --+
//! OVN_Southbound:   hosts ------------------> end points ---+--> program, ports, end points
//!                   flows, ports, groups ... ---------------+        | installed
//!                   Chassis, Port_Binding, nb_cfg <------------------+
//! Open_vSwitch:     ofport, cur_cfg, ovn-installed <---------+
//! ```
//!
//! [`Host`] is a state machine: its owner passes replicas of both databases with their changes and
//! the time, applies each [`Installation`], and sends the transactions that it asks for. A
//! transaction contains the differences between the contents of a database and the contents that it
//! should have. So nothing is lost with a connection: after a reconnection the owner asks for
//! transactions again.
//!
//! A lost connection changes nothing else. The replica stays as it was, and so does the program.
#![forbid(unsafe_code)]

mod announcements;
mod claims;
mod endpoints;
mod health;
mod host;
mod learned_writer;
mod local;
mod monitored;
mod program;
mod provider;
mod settings;
mod tables;
mod unset;
mod writes;

pub use announcements::{Announcement, AnnouncementKey};
pub use health::ServiceCheck;
pub use host::{Host, Installation};
pub use local::{DeviceFacts, PortCounters};
pub use program::{BadFlow, BalancedPair};
pub use settings::{Settings, SettingsError, TlsPaths};
pub use tables::{of_host, of_southbound};
pub use unset::UnsetHost;
pub use writes::UnixMs;
