//! Target: flows in the syntax of ovs-ofctl, and packets that they process.

use flow::PortNo;
use ofctl::{Bridge, BridgeError, parse_packet_flow};
use pipeline::translate;

/// Separates the flows of an input from the packets that follow, one per line.
const PACKETS: &str = "\n---\n";

/// Loads a file. Valid flows are printed; loading and printing the printed text must give the same
/// text. Valid packets are translated. The position of an error must be inside the text. Returns
/// whether the file is valid.
pub fn file(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    let (flows, packets) = text.split_once(PACKETS).unwrap_or((text, ""));
    let Some(mut bridge) = bridge() else { return false };
    match bridge.apply(flows, "flows", 0) {
        Ok(_) => {}
        Err(BridgeError::Problems(found)) => {
            for problem in &found.problems {
                let line = flows.lines().nth(problem.line - 1).unwrap_or_default();
                assert!((1..=line.chars().count() + 1).contains(&problem.column), "{problem}");
            }
            return false;
        }
        Err(BridgeError::TooManyFlows(_) | BridgeError::TooManyZones(_)) => return false,
    }
    let dump = bridge.dump();
    let Some(mut again) = self::bridge() else { return false };
    assert_eq!(again.apply(&dump, "dump", 0).map(|_| again.dump()), Ok(dump));
    for packet in packets.lines() {
        if let Ok(key) = parse_packet_flow(packet, bridge.ports()) {
            let actions = translate(bridge.program(), &key, &(), &mut ()).actions;
            assert!(!actions.is_empty());
        }
    }
    true
}

/// A bridge with the ports 1 to 3.
fn bridge() -> Option<Bridge> {
    let ports = (1..=3).map(|number| Bridge::device(PortNo(number), &format!("p{number}")));
    Bridge::new("br0", ports).ok()
}
