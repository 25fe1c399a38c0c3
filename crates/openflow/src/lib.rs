//! The subset of OpenFlow 1.0 and 1.3, with extensions of Open vSwitch, that ovs-ofctl needs to
//! read the tables of a host in an OVN deployment.
//!
//! ```text
//! request -> reply: hello, echo, barrier
//!                   flows  <- Program: matches, actions, counters
//!                   groups <- Program: load balancers
//!                   an error for everything else
//! ```
//!
//! The logical flows appear under the table numbers of ovn-controller 23.03. A flow for several
//! logical datapaths appears once for each. Steps for which OpenFlow has no action appear as
//! `note`, with the name of the step in hexadecimal. Flows whose match OpenFlow cannot express are
//! left out.
//!
//! The connection is read-only. The exception is a provider bridge: it accepts the flow
//! `actions=NORMAL` for all packets, which describes what it already does.
#![forbid(unsafe_code)]

mod actions;
mod fields;
mod flows;
mod message;
mod reply;

pub use message::{HEADER_LEN, message_len};
pub use reply::{BridgeKind, hello, reply};
