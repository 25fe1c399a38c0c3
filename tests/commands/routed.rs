//! A lab with a logical router.

use super::call::Watch;
use crate::common::{Daemon, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup};
use netdev::Route;
use serde_json::Value;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;
use testkit::host::wait_until;
use wire::MacAddr;

/// Two logical switches connected by a router. Each has one guest, and the guests are on different
/// hosts.
pub struct Routed {
    pub lab: Lab,
    pub daemons: [Daemon; 2],
    /// The line number of the access control list entry in the network file.
    pub acl_line: usize,
}

/// The MAC address of the router port toward the first guest.
pub const GATEWAY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 1, 1]);
pub const NEAR: [u8; 4] = [10, 0, 1, 10];
pub const FAR: [u8; 4] = [10, 0, 2, 10];

impl Routed {
    pub fn start() -> Self {
        let lab = Lab::new(Setup::new("geneve"));
        let text = routed_toml(&lab);
        let line = text.lines().position(|line| line == "[[acl]]").expect("an ACL");
        fs::write(lab.network_file(), text).expect("a file can be written");
        let daemons = lab.start_both();
        for (guest, gateway) in lab.guests.iter().zip([[10, 0, 1, 1], [10, 0, 2, 1]]) {
            let everywhere = "0.0.0.0/0".parse().expect("a prefix");
            let route = Route::via(everywhere, IpAddr::from(gateway));
            guest.netns.netlink().add_route(&route).expect("a route can be added");
        }
        Self { lab, daemons, acl_line: line + 1 }
    }

    pub fn near(&self) -> &Guest {
        &self.lab.guests[0]
    }

    /// Calls `send` until `weft monitor` on a host reports a drop. Returns that drop.
    pub fn dropped(&self, host: usize, args: &[&str], mut send: impl FnMut()) -> Value {
        let args = [&["monitor", "--drops", "--json", "--count", "1"], args].concat();
        let mut watch = Watch::start(&self.lab.control(host), &args);
        let mut line = None;
        wait_until(PATIENCE, "the drop is reported", || {
            send();
            line = watch.lines.recv_timeout(Duration::from_millis(20)).ok();
            line.is_some()
        });
        assert_eq!(watch.end(), (Some(0), String::new()));
        serde_json::from_str(&line.expect("a line")).expect("JSON")
    }
}

fn routed_toml(lab: &Lab) -> String {
    let hosts = lab.hosts.iter().map(|host| {
        let (name, uplink, address) = (host.name, &host.uplink.name, host.uplink.ip4);
        format!("[[host]]\nname = \"{name}\"\nuplink = \"{uplink}\"\nunderlay = [\"{address}\"]\n")
    });
    let mut text = format!("tunnel = \"geneve\"\n{}", hosts.collect::<String>());
    for (number, (guest, name)) in (1..).zip(lab.guests.iter().zip(["web", "db"])) {
        let (port, mac, host) = (&guest.name, guest.mac, lab.hosts[guest.host].name);
        let netns = guest.netns.name().expect("a name");
        text += &format!(
            "[[logical_switch]]\nname = \"{name}\"\nvni = {number}\n\
             [[logical_switch.port]]\nname = \"{port}\"\nhost = \"{host}\"\nmac = \"{mac}\"\n\
             addresses = [\"10.0.{number}.10/24\"]\nport_security = true\n\
             device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n"
        );
    }
    text += "[[logical_router]]\nname = \"core\"\n";
    for (number, switch) in [(1, "web"), (2, "db")] {
        text += &format!(
            "[[logical_router.port]]\nname = \"core-{switch}\"\nswitch = \"{switch}\"\n\
             mac = \"02:00:00:00:{number:02x}:01\"\naddresses = [\"10.0.{number}.1/24\"]\n"
        );
    }
    text + "[[acl]]\nswitch = \"db\"\ndirection = \"to-port\"\npriority = 1000\n\
            match = 'udp.dst == 53'\naction = \"drop\"\n"
}
