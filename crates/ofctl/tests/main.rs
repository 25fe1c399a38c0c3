//! The flow syntax of ovs-ofctl: accepted and rejected lines, the execution of flows, and the
//! comparison with Open vSwitch.

mod bounds;
mod bridge;
mod language;
mod matches;
mod peer;
mod public_faults;

use flow::PortNo;
use ofctl::{Bridge, Ports};

/// Ports 1 to 4, named p1 to p4.
fn bridge() -> Bridge {
    let ports = (1..=4).map(|number| Bridge::device(PortNo(number), &format!("p{number}")));
    Bridge::new("br0", ports).unwrap()
}

fn ports() -> Ports {
    bridge().ports().clone()
}
