//! The output of OVN's tools: dumps of the southbound database, and lists of logical flows.

use lflow::FlowList;
use southbound::Southbound;

/// Reads a dump, and compiles it to a program. Read twice, it must have the same rows. Returns the
/// number of rows, and whether they make a network; `None` if it is no dump.
pub fn dump(bytes: &[u8]) -> Option<(usize, bool)> {
    let text = str::from_utf8(bytes).ok()?;
    let rows = Southbound::parse(text).ok()?;
    let twice = Southbound::parse(&format!("{text}\n{text}")).expect("each part is a dump");
    assert_eq!(count(&twice), count(&rows));
    let network = rows.network();
    if let Err(errors) = &network {
        assert!(!errors.is_empty() && errors.iter().all(|error| !error.to_string().is_empty()));
    }
    Some((count(&rows), network.is_ok()))
}

fn count(rows: &Southbound) -> usize {
    let Southbound {
        datapaths,
        ports,
        flows,
        dp_groups,
        load_balancers,
        multicast_groups,
        address_sets,
        port_groups,
        mac_bindings,
        static_mac_bindings,
        fdb,
        chassis,
    } = rows;
    let of_flows = datapaths.len() + ports.len() + flows.len() + dp_groups.len();
    let of_sets = multicast_groups.len() + address_sets.len() + port_groups.len();
    let learned = mac_bindings.len() + static_mac_bindings.len() + fdb.len();
    of_flows + load_balancers.len() + of_sets + learned + chassis.len()
}

/// Reads a list line by line. The canonical form of a line must be its own canonical form. Returns
/// the number of valid lines, and of others that are not empty.
pub fn list(bytes: &[u8]) -> (usize, usize) {
    let Ok(text) = str::from_utf8(bytes) else { return (0, 0) };
    let (mut list, mut valid, mut invalid) = (FlowList::default(), 0, 0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut before = list;
        match list.line(line) {
            Ok(canonical) => {
                assert_eq!(before.line(&canonical).as_deref(), Ok(canonical.as_str()), "{line}");
                valid += 1;
            }
            Err(_) => invalid += 1,
        }
    }
    (valid, invalid)
}
