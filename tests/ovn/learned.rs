//! Tests that the addresses which a host learns from packets are written to the southbound
//! database, and so are known to all hosts.

use super::*;

/// Waits until `column` of the only row that meets `condition` is `wanted`.
fn wait_for(ovn: &Ovn, column: &str, table: &str, condition: &str, wanted: &str) {
    let query = format!("--bare --columns={column} find {table} {condition}");
    wait_until(PATIENCE, &format!("{table} has {condition} with {column} {wanted}"), || {
        ovn.sbctl(&query).trim() == wanted
    });
}

/// The MAC address that a host uses for an IP address.
fn binding(control: &Path, ip: &str) -> Option<String> {
    let (code, printed, error) = weft(control, &["fdb", "--json"]);
    assert_eq!(code, 0, "{error}");
    let fdb: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let bindings = fdb["bindings"].as_array().expect("a list");
    let found = bindings.iter().find(|row| row["ip"] == ip);
    found.map(|row| row["mac"].as_str().expect("an address").to_owned())
}

#[test]
fn addresses_that_packets_teach_reach_the_database_and_all_hosts() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("learned");
    let (near, far) = lab.ends();
    routed(&ovn, [near, far]);
    // The addresses of this guest are not configured, so the router must resolve them with ARP.
    ovn.nbctl(&format!("lsp-set-addresses {} unknown", far.name));
    let hosts = Hosts::start(&lab, &ovn);
    address_routed(near, 1);
    address_routed(far, 2);
    traffic::ping(&near.netns, routed_ip(2).into());

    let (ip, mac) = (routed_ip(2).to_string(), far.mac.to_string());
    let row = format!("ip={ip} logical_port=r0-s2");
    wait_for(&ovn, "mac", "MAC_Binding", &row, &mac);
    let time = ovn.sbctl(&format!("--bare --columns=timestamp find MAC_Binding {row}"));
    assert!(time.trim().parse::<u64>().is_ok_and(|ms| ms > 0), "timestamp {time}");
    let key = |port: &str| {
        let query = format!("--bare --columns=tunnel_key find Port_Binding logical_port={port}");
        ovn.sbctl(&query).trim().to_owned()
    };
    wait_for(&ovn, "port_key", "FDB", &format!("'mac=\"{mac}\"'"), &key(&far.name));
    for at in [0, 1] {
        wait_until(PATIENCE, "the host knows the binding", || {
            binding(&lab.control(at), &ip).as_deref() == Some(mac.as_str())
        });
    }

    // The guest's MAC address changes, and its kernel announces this with a gratuitous ARP request.
    let other = "02:00:00:00:ee:01";
    let notify = format!("net.ipv4.conf.{GUEST_DEVICE}.arp_notify=1");
    run(with_args(far.netns.program("sysctl"), &["-q", "-w", &notify]), b"");
    let change = ["link", "set", GUEST_DEVICE, "address", other];
    run(with_args(far.netns.program("ip"), &change), b"");
    traffic::ping(&far.netns, gateway(2).into());
    wait_for(&ovn, "mac", "MAC_Binding", &row, other);
    wait_for(&ovn, "port_key", "FDB", &format!("'mac=\"{other}\"'"), &key(&far.name));
    traffic::ping(&near.netns, routed_ip(2).into());
    for at in [0, 1] {
        wait_until(PATIENCE, "the host knows the new address", || {
            binding(&lab.control(at), &ip).as_deref() == Some(other)
        });
    }
    // A row that an operator deletes is forgotten, and learned again when it is needed.
    let uuid = ovn.sbctl(&format!("--bare --columns=_uuid find MAC_Binding {row}"));
    ovn.sbctl(&format!("destroy MAC_Binding {}", uuid.trim()));
    for at in [0, 1] {
        wait_until(PATIENCE, "the host has forgotten the address", || {
            binding(&lab.control(at), &ip).is_none()
        });
    }
    // The first packets are queued while the router resolves the address, so all of them arrive.
    let ping = ["-c", "3", "-i", "0.2", "-W", "3", &ip];
    let printed = with_args(near.netns.program("ping"), &ping).output().expect("ping runs");
    let printed = String::from_utf8_lossy(&printed.stdout);
    assert!(printed.contains(" 3 received"), "{printed}");
    wait_for(&ovn, "mac", "MAC_Binding", &row, other);
    hosts.stop(&ovn);
}
