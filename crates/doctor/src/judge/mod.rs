//! What facts mean. Every function here takes facts and returns findings or verdicts, and asks nobody.

pub mod firewall;
pub mod host;
pub mod mtu;
pub mod nic;
pub mod path;
pub mod reach;
pub mod tunnel;
