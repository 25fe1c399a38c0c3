//! The contenders that track connections: weft, Open vSwitch and the bridge with the same rules.
//!
//! [`StatefulRules::Acls`] allows all connections of the guests, and tracks them in both directions
//! of both hosts. [`StatefulRules::Nat`] also has the host of the first guest translate both
//! addresses:
//!
//! ```text
//!   first guest, port 40000 -> VIP             10.77.0.11:40000 -> 10.77.0.100
//!   becomes    SNAT address -> second guest    10.77.0.1:40000  -> 10.77.0.21
//! ```

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use network::TunnelType;

use super::attachment::Attachment;
use super::contender::{Datapath, StatefulRules, StatefulSwitch};
use super::host::{GUEST_DEVICE, Guest, Host};
use super::network_file::network_toml;
use super::underlay::Lab;
use super::{kernel, ovs, weft};
use crate::process;
use crate::{Error, Result};

/// The address at which the first guest reaches the second one.
const VIP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// The address that the second guest sees in place of the first one's.
const SNAT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// How long `nft` may take.
const NFT_LIMIT: Duration = Duration::from_secs(10);

/// Allows and tracks all packets in one zone.
const OVS_ACLS: &str = "\
table=0,priority=1,actions=NORMAL
table=0,priority=10,ip,actions=ct(zone=1,table=1)
table=1,priority=10,ip,ct_state=+trk+new,actions=ct(commit,zone=1),NORMAL
table=1,priority=10,ip,ct_state=+trk+est,actions=NORMAL";

/// Packets from the guest (port 1) pass the zones in the order 1, 2, 3. Packets from the tunnel
/// pass them in reverse order, because zone 1 tracks the addresses that the guest uses.
const OVS_NAT: &str = "\
table=0,priority=1,actions=NORMAL
table=0,priority=10,ip,in_port=1,actions=ct(zone=1,table=1)
table=1,priority=10,ip,ct_state=+trk+new,actions=ct(commit,zone=1),resubmit(,2)
table=1,priority=10,ip,ct_state=+trk+est,actions=resubmit(,2)
table=2,priority=10,ip,actions=ct(zone=2,nat,table=3)
table=3,ip,ct_state=+trk+new,nw_dst=VIP,actions=ct(commit,zone=2,nat(dst=SERVER),table=4)
table=3,priority=5,ip,actions=resubmit(,4)
table=4,priority=10,ip,actions=ct(zone=3,nat,table=5)
table=5,ip,ct_state=+trk+new,nw_dst=SERVER,actions=ct(commit,zone=3,nat(src=SNAT),table=6)
table=5,priority=5,ip,actions=resubmit(,6)
table=6,actions=NORMAL
table=0,priority=9,ip,actions=ct(zone=3,nat,table=10)
table=10,ip,actions=ct(zone=2,nat,table=11)
table=11,ip,actions=ct(zone=1,table=12)
table=12,priority=10,ip,ct_state=+trk+new,actions=ct(commit,zone=1),NORMAL
table=12,priority=5,ip,actions=NORMAL";

impl StatefulRules {
    /// The address at which the first guest reaches `server`.
    pub fn service(self, server: &Guest) -> Ipv4Addr {
        match self {
            Self::Acls => server.ip4(),
            Self::Nat => VIP,
        }
    }

    /// The source address of `client` as the second guest sees it.
    pub fn client(self, client: &Guest) -> Ipv4Addr {
        match self {
            Self::Acls => client.ip4(),
            Self::Nat => SNAT,
        }
    }
}

/// Connects the guests with `switch` and `rules`.
///
/// # Errors
/// As [`Contender::attach`](super::Contender::attach).
pub(super) fn attach(
    lab: &Lab<'_>,
    switch: StatefulSwitch,
    rules: StatefulRules,
    weft: &Path,
) -> Result<Attachment> {
    match (switch, rules) {
        (StatefulSwitch::Bridge, StatefulRules::Nat) => {
            Err(Error::Other("this lab has no bridge that translates addresses".into()))
        }
        (StatefulSwitch::Bridge, StatefulRules::Acls) => {
            let attachment = kernel::bridge(lab)?;
            lab.hosts().iter().try_for_each(|host| track_bridged(lab, host))?;
            Ok(attachment)
        }
        (StatefulSwitch::Ovs(tunnel), _) => {
            let flows = |host: &Host| ovs_flows(lab, host, rules);
            let attachment = ovs::attach_with(lab, Datapath::Kernel, tunnel, &flows)?;
            if rules == StatefulRules::Nat {
                set_neighbours(lab)?;
            }
            Ok(attachment)
        }
        (StatefulSwitch::Weft(tunnel), _) => {
            let text = weft_network(lab, tunnel, rules);
            weft::attach_with(lab, Datapath::Kernel, &text, weft, &[])
        }
    }
}

/// Adds one nftables rule for bridged packets, which makes the kernel track all of them.
fn track_bridged(lab: &Lab<'_>, host: &Host) -> Result<()> {
    let mut nft = host.netns().command(Command::new("nft"));
    nft.arg(
        "add table bridge lab; \
         add chain bridge lab forward { type filter hook forward priority 0; }; \
         add rule bridge lab forward ct state established,related accept",
    );
    process::run("nft", nft, NFT_LIMIT, lab.stop()).map(drop)
}

/// Port security for every guest, and ACLs that track all traffic in both directions. With NAT,
/// there is also a router with one port on the first host.
fn weft_network(lab: &Lab<'_>, tunnel: TunnelType, rules: StatefulRules) -> String {
    let ports = network_toml(lab, tunnel);
    let mut text = ports.replace("\naddresses = ", "\nport_security = true\naddresses = ");
    for (direction, side) in [("from-port", "inport"), ("to-port", "outport")] {
        for guest in lab.guests() {
            let name = guest.name();
            text += &format!(
                "\n[[acl]]\nswitch = \"lab\"\ndirection = \"{direction}\"\npriority = 1000\n\
                 match = '{side} == \"{name}\" && ip'\naction = \"allow-related\"\n"
            );
        }
    }
    if rules == StatefulRules::Nat {
        let (client, server) = (lab.guest(0, 0), lab.guest(1, 0));
        let (host, inside, server) = (lab.hosts()[0].name(), client.ip4(), server.ip4());
        text += &format!(
            "\n[[logical_router]]\nname = \"edge\"\nhost = \"{host}\"\n\
             \n[[logical_router.port]]\nname = \"edge-lab\"\nswitch = \"lab\"\n\
             mac = \"02:77:00:00:ff:01\"\naddresses = [\"{SNAT}/24\"]\n\
             \n[[nat]]\nrouter = \"edge\"\ntype = \"snat\"\n\
             external = \"{SNAT}\"\ninternal = \"{inside}\"\n\
             \n[[nat]]\nrouter = \"edge\"\ntype = \"dnat\"\n\
             external = \"{VIP}\"\ninternal = \"{server}\"\n"
        );
    }
    text
}

/// The flows that track all connections of the guest of `host`. Zone 1 is for its ACLs. With NAT,
/// the first host also has zone 2 for translated destinations and zone 3 for translated sources.
fn ovs_flows(lab: &Lab<'_>, host: &Host, rules: StatefulRules) -> Vec<String> {
    let text = match rules {
        StatefulRules::Nat if host.index == 0 => {
            OVS_NAT.replace("VIP", &VIP.to_string()).replace("SNAT", &SNAT.to_string())
        }
        _ => OVS_ACLS.to_owned(),
    };
    let server = lab.guest(1, 0).ip4().to_string();
    text.replace("SERVER", &server).lines().map(str::to_owned).collect()
}

/// Adds neighbour entries that map the translated addresses to the MAC addresses of the guests.
/// Open vSwitch then only translates IP addresses; weft's router translates MAC addresses too.
fn set_neighbours(lab: &Lab<'_>) -> Result<()> {
    let (client, server) = (lab.guest(0, 0), lab.guest(1, 0));
    for (guest, address, other) in [(client, VIP, server), (server, SNAT, client)] {
        let netlink = guest.netns().netlink()?;
        netlink.set_neighbour(netlink.index_of(GUEST_DEVICE)?, address.into(), other.mac())?;
    }
    Ok(())
}
