//! OpenFlow 1.3 with the extensions of Open vSwitch, as far as ovs-ofctl needs it to read the
//! tables of a host of an OVN deployment.
//!
//! ```text
//! request -> reply: hello, echo, barrier
//!                   flows  <- Program: matches, actions, counters
//!                   groups <- Program: load balancers
//!                   an error for everything else
//! ```
//!
//! The logical flows appear under the table numbers of ovn-controller 23.03. A flow for several
//! logical datapaths appears once for each. OpenFlow has no action for some steps: they appear as
//! `note`, with the name of the step in hexadecimal. Flows whose match OpenFlow cannot express are
//! left out.
//!
//! Nothing can be changed. A provider bridge accepts the one flow that says what it does anyway:
//! `actions=NORMAL` for all packets.
#![forbid(unsafe_code)]

mod actions;
mod fields;
mod flows;
mod message;
mod reply;

pub use message::{HEADER_LEN, message_len};
pub use reply::{BridgeKind, hello, reply};
