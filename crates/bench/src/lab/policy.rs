//! The part of weft's network file that other contenders lack: ACLs, and a logical router to a
//! second switch with one more guest on each host.
//!
//! ```text
//!   h1g1  h1g2  h2g1  h2g2                h1r   h2r      10.78.0.<host>1/24, behind the router
//!     |     |     |     |                  |     |
//!   [        lab        ] --- core --- [    far    ]
//! ```
//!
//! The measured guests are in one switch, as with every contender; an ACL entry allows their
//! traffic.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use netdev::{IpNet, Netns, OwnedNetns, Route};
use network::TunnelType;
use wire::MacAddr;

use super::host::{GUEST_DEVICE, namespace};
use super::names;
use super::network_file::{flat_network, segment};
use super::underlay::Lab;
use crate::{Error, Result, Stop};

/// The TCP port that an ACL of the second switch rejects (telnet).
pub const REJECTED_PORT: u16 = 23;
/// The switch of the measured guests, and the switch behind the router.
pub const SWITCHES: [&str; 2] = ["lab", "far"];
/// The router's IPv4 address in the switch of the measured guests.
pub const GATEWAY4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The router's IPv6 address in the switch of the measured guests.
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0xffff);
const FAR_GATEWAY4: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const FAR_GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 0xffff);
const LAB_MAC: MacAddr = MacAddr([0x02, 0x77, 0, 0, 0xff, 1]);
const FAR_MAC: MacAddr = MacAddr([0x02, 0x77, 0, 0, 0xff, 2]);
/// How long a guest's device may take to appear.
const DEVICE_LIMIT: Duration = Duration::from_secs(3);

/// The match of the ACL entry that rejects connections.
pub const REJECT_MATCH: &str = "tcp.dst == 23";
/// The match of the ACL entry that allows the measured traffic. It covers more than the lab's
/// addresses, because scenarios also send from generated source addresses.
pub const ALLOW_MATCH: &str = "ip4.src == $inside4 || ip6.src == $inside6";

/// The ACLs, the router and the guests behind it. Dropping it removes the guests.
#[derive(Debug)]
pub struct RoutedSetup {
    guests: Vec<RoutedGuest>,
}

/// A guest behind the router.
#[derive(Debug)]
pub struct RoutedGuest {
    host: usize,
    netns: OwnedNetns,
}

impl RoutedGuest {
    /// `h1r` or `h2r`.
    pub fn name(&self) -> String {
        format!("h{}r", self.host + 1)
    }

    /// The IPv4 address of its `eth0`, a /24.
    pub fn ip4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, 0, 10 * (self.host as u8 + 1) + 1)
    }

    /// The IPv6 address of its `eth0`, a /64.
    pub fn ip6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, self.host as u16 + 1, 1)
    }

    fn mac(&self) -> MacAddr {
        MacAddr([0x02, 0x78, 0, 0, self.host as u8 + 1, 1])
    }

    /// Runs `work` in its namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        Ok(self.netns.run_in(work)?)
    }
}

impl RoutedSetup {
    /// Creates the guests behind the router, which have no device yet.
    ///
    /// # Errors
    /// The kernel refuses a namespace.
    pub fn create(lab: &Lab<'_>) -> Result<Self> {
        let guest = |host| {
            let netns = namespace(&format!("{}h{}r", names::prefix(), host + 1))?;
            Ok(RoutedGuest { host, netns })
        };
        (0..lab.hosts().len()).map(guest).collect::<Result<_>>().map(|guests| Self { guests })
    }

    /// The guests behind the router, one of each host.
    pub fn guests(&self) -> &[RoutedGuest] {
        &self.guests
    }

    /// The network file of `lab` with `tunnel` between the hosts.
    pub fn network_toml(&self, lab: &Lab<'_>, tunnel: TunnelType) -> String {
        // The guests' ARP requests cross the tunnel, as they do with the other contenders.
        let mut text = flat_network(lab, tunnel, "arp_responder = false\n");
        let far = segment(tunnel, 1);
        let _ = write!(text, "\n[[logical_switch]]\nname = \"far\"\n{far}\n");
        for guest in &self.guests {
            let (name, host) = (guest.name(), lab.hosts()[guest.host].name());
            let (mac, ip4, ip6) = (guest.mac(), guest.ip4(), guest.ip6());
            let netns: &Netns = &guest.netns;
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n[[logical_switch.port]]\nname = \"{name}\"\nhost = \"{host}\"\nmac = \"{mac}\"\n\
                 addresses = [\"{ip4}/24\", \"{ip6}/64\"]\n\
                 device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n"
            );
        }
        text + &router() + &lists()
    }

    /// Adds routes via the router to the guests of both switches.
    ///
    /// # Errors
    /// A guest of the second switch has no device within 3 s, or [`Error::Interrupted`].
    pub fn add_routes(&self, lab: &Lab<'_>, stop: &Stop) -> Result<()> {
        for guest in lab.guests() {
            let far = self.guests.first().map(|far| [far.ip4().into(), far.ip6().into()]);
            add_routes(guest.netns(), far, [GATEWAY4.into(), GATEWAY6.into()], stop)?;
        }
        for guest in &self.guests {
            let near = lab.guests().first().map(|near| [near.ip4().into(), near.ip6().into()]);
            add_routes(&guest.netns, near, [FAR_GATEWAY4.into(), FAR_GATEWAY6.into()], stop)?;
        }
        Ok(())
    }
}

/// Adds routes to the IPv4 and IPv6 networks of `there` via `gateways`.
fn add_routes(
    netns: &Netns,
    there: Option<[IpAddr; 2]>,
    gateways: [IpAddr; 2],
    stop: &Stop,
) -> Result<()> {
    let netlink = netns.netlink()?;
    for (there, gateway) in there.into_iter().flatten().zip(gateways) {
        let len = if there.is_ipv4() { 24 } else { 64 };
        let prefix = IpNet::new(there, len)
            .map_err(|_| Error::Other(format!("{there}/{len} is no prefix")))?;
        let route = Route::via(prefix, gateway);
        let mut last = String::new();
        // The kernel rejects the route as unreachable until the guest's device exists.
        let added = stop.wait_for("a route", DEVICE_LIMIT, || match netlink.add_route(&route) {
            Ok(()) => Ok(Some(())),
            Err(error) => {
                last = error.to_string();
                Ok(None)
            }
        });
        added.map_err(|error| match error {
            Error::Deadline { what, limit, .. } => Error::Deadline { what, limit, detail: last },
            other => other,
        })?;
    }
    Ok(())
}

fn router() -> String {
    let port = |switch: &str, mac: MacAddr, ip4: Ipv4Addr, ip6: Ipv6Addr| {
        format!(
            "\n[[logical_router.port]]\nname = \"core-{switch}\"\nswitch = \"{switch}\"\nmac = \"{mac}\"\n\
             addresses = [\"{ip4}/24\", \"{ip6}/64\"]\n"
        )
    };
    let [near, far] = SWITCHES;
    let near = port(near, LAB_MAC, GATEWAY4, GATEWAY6);
    let far = port(far, FAR_MAC, FAR_GATEWAY4, FAR_GATEWAY6);
    format!("\n[[logical_router]]\nname = \"core\"\n{near}{far}")
}

/// The ACLs: they drop packets from source addresses outside the lab, and reject [`REJECTED_PORT`]
/// in the second switch.
fn lists() -> String {
    let entry = |switch: &str, priority: u16, condition: &str, action: &str| {
        format!(
            "\n[[acl]]\nswitch = \"{switch}\"\ndirection = \"to-port\"\npriority = {priority}\nmatch = '{condition}'\n\
             action = \"{action}\"\n"
        )
    };
    let mut text = String::from(
        "\n[address_set]\ninside4 = [\"10.0.0.0/8\"]\ninside6 = [\"fd00::/8\", \"fe80::/10\"]\n",
    );
    for switch in SWITCHES {
        text += &entry(switch, 200, ALLOW_MATCH, "allow");
        text += &entry(switch, 100, "ip", "drop");
    }
    let [_, far] = SWITCHES;
    text + &entry(far, 300, REJECT_MATCH, "reject")
}
