//! Links: create, delete, look up, list, change.

mod spec;

pub use spec::{LinkKind, LinkSpec, VxlanSpec};

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, Nla};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoGeneve, InfoPortData, InfoPortKind, InfoVxlan, LinkAttribute,
    LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, XdpAttached,
};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use wire::MacAddr;

use super::Netlink;
use crate::{Error, Netns, Result};

/// The longest name of a link, in bytes (IFNAMSIZ less the final zero).
const NAME_MAX_BYTES: usize = 15;

/// The interface index of a link: unique within its namespace, at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ifindex(pub u32);

impl fmt::Display for Ifindex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A link, as the kernel describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its interface index.
    pub index: Ifindex,
    /// Its name, unique within the namespace.
    pub name: String,
    /// Its MAC address; zero for devices that are not Ethernet.
    pub mac: MacAddr,
    /// Its frames have an Ethernet header. So do those of the loopback device.
    pub is_ethernet: bool,
    /// The MTU: the longest L3 packet, in bytes.
    pub mtu: u32,
    /// The largest MTU that it accepts, in bytes; 0 when the kernel does not report it.
    pub max_mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Operational: up and with a carrier.
    pub running: bool,
    /// Promiscuous by configuration; promiscuous mode that sockets request is not included.
    pub promiscuous: bool,
    /// It has a carrier; always true for devices that cannot detect one.
    pub carrier: bool,
    /// `veth`, `bridge`, `vxlan`, `tun` ...; `None` for hardware and the loopback device.
    pub kind: Option<String>,
    /// The bridge or bond it is a port of.
    pub master: Option<Ifindex>,
    /// The UDP port of a vxlan or geneve device.
    pub tunnel_port: Option<u16>,
    /// The queues of a TUN or TAP device.
    pub tun_queues: Option<TunQueues>,
    /// The linked device: the peer of a veth, the device that a VLAN is on.
    pub lower: Option<LowerLink>,
    /// How an XDP program is attached; `None` without one.
    pub xdp: Option<XdpMode>,
    /// The maximum sizes of super-packets.
    pub limits: SizeLimits,
    /// The longest super-packet that the driver's TSO accepts, in bytes; 0 when the kernel does not
    /// report it.
    pub tso_max_size: u32,
    /// The length of the transmit queue, in packets.
    pub tx_queue_len: u32,
    /// A queueing discipline may delay or drop packets that are sent.
    pub has_qdisc: bool,
    /// Transmit queues.
    pub tx_queues: u32,
    /// Receive queues.
    pub rx_queues: u32,
    /// Counters since the device was created.
    pub stats: LinkStats,
}

/// The queues of a TUN or TAP device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TunQueues {
    /// It was created with `IFF_MULTI_QUEUE`, so that programs can open several queues.
    pub is_multi_queue: bool,
    /// Queues that programs have open now, including disabled ones. The kernel does not report
    /// them for a device with a single queue; then 0.
    pub open: u32,
}

/// How an XDP program is attached to a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the network stack, on linear copies of frames where necessary.
    Generic,
    /// On the NIC.
    Offloaded,
    /// Several programs, in different modes.
    Several,
}

/// The device that a link is linked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerLink {
    /// Its interface index in its own namespace.
    pub index: Ifindex,
    /// The ID of its namespace ([`Netlink::nsid_of`]); `None` when it is the namespace of the link.
    pub netns: Option<i32>,
}

/// The 64-bit counters of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of the kernel's rtnl_link_stats64")]
pub struct LinkStats {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
}

/// The maximum sizes of super-packets, in bytes. `None`: the kernel does not know the limit, or,
/// when setting, leave it unchanged.
///
/// Up to 65,536, `gso` and `gro` apply to IPv4 too: setting one to such a value also sets its IPv4
/// counterpart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SizeLimits {
    /// The longest super-packet passed to the device.
    pub gso: Option<u32>,
    /// The longest super-packet that GRO builds.
    pub gro: Option<u32>,
    /// `gso` for IPv4 (Linux 6.3).
    pub gso_ipv4: Option<u32>,
    /// `gro` for IPv4 (Linux 6.3).
    pub gro_ipv4: Option<u32>,
}

impl SizeLimits {
    /// The same value for all four.
    pub const fn all(bytes: u32) -> Self {
        let limit = Some(bytes);
        Self { gso: limit, gro: limit, gso_ipv4: limit, gro_ipv4: limit }
    }
}

impl Netlink {
    /// Creates a link and returns its index in the namespace where it was created.
    ///
    /// # Errors
    /// [`Error::is_exists`] when the name is taken, [`Error::Invalid`] for an invalid name,
    /// `EOPNOTSUPP` when the kernel lacks this kind of link.
    pub fn create(&self, spec: &LinkSpec<'_>, kind: &LinkKind<'_>) -> Result<Ifindex> {
        let what = format!("create {} link {}", kind.name(), spec.name);
        let mut message = spec.message()?;
        message.attributes.push(LinkAttribute::LinkInfo(kind.info()?));
        message.attributes.extend(kind.parent().map(|index| LinkAttribute::Link(index.0)));
        self.change(&what, RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)?;
        if let LinkKind::Veth { peer } = kind
            && peer.up
            && let Err(error) = self.on(peer, |netlink, index| netlink.set_up(index))
        {
            // Report the first error. If deleting fails too, a pair with one end down remains.
            let _ = self.on(spec, Self::delete);
            return Err(error);
        }
        self.on(spec, |_, index| Ok(index))
    }

    /// Calls `work` with a handle for the namespace of `spec` and the index of its link there.
    fn on<R>(
        &self,
        spec: &LinkSpec<'_>,
        work: impl FnOnce(&Self, Ifindex) -> Result<R>,
    ) -> Result<R> {
        match spec.netns {
            Some(netns) => {
                let there = netns.netlink()?;
                work(&there, there.index_of(spec.name)?)
            }
            None => work(self, self.index_of(spec.name)?),
        }
    }

    /// Deletes a link; of a veth pair, both ends.
    pub fn delete(&self, index: Ifindex) -> Result<()> {
        let message = RouteNetlinkMessage::DelLink(of_index(index));
        self.change(&format!("delete link {index}"), message, 0)
    }

    /// The link `name`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when it does not exist.
    pub fn link(&self, name: &str) -> Result<Link> {
        check_link_name(name)?;
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.one_link(&format!("look up link {name}"), message)
    }

    /// The link with the interface index `index`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when it does not exist.
    pub fn link_by_index(&self, index: Ifindex) -> Result<Link> {
        self.one_link(&format!("look up link {index}"), of_index(index))
    }

    /// The link at the other end of `link`, such as of a veth pair, also in another namespace.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when there is none, or when its namespace is not accessible.
    pub fn other_end(&self, link: &Link) -> Result<Link> {
        let what = format!("look up the other end of link {}", link.name);
        let lower = link.lower.ok_or_else(|| Error::not_found(what.clone(), "other end"))?;
        let mut message = of_index(lower.index);
        message.attributes.extend(lower.netns.map(LinkAttribute::IfNetnsId));
        self.one_link(&what, message)
    }

    /// The interface index of the link `name`; see [`Netlink::link`].
    pub fn index_of(&self, name: &str) -> Result<Ifindex> {
        self.link(name).map(|link| link.index)
    }

    /// All links of the namespace.
    pub fn links(&self) -> Result<Vec<Link>> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let answers = self.dump("list links", request)?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(message) => Some(Link::from_message(message)),
                _ => None,
            })
            .collect())
    }

    /// The ID of the namespace `netns` in the namespace of this handle (RTM_GETNSID); `None` when
    /// it has no ID there, because no link leads to it.
    pub fn nsid_of(&self, netns: &Netns) -> Result<Option<i32>> {
        let what = "find the number of a namespace";
        let mut message = NsidMessage::default();
        let fd = netns.as_fd().as_raw_fd().unsigned_abs();
        message.attributes.push(NsidAttribute::Fd(fd));
        let RouteNetlinkMessage::NewNsId(answer) =
            self.query(what, RouteNetlinkMessage::GetNsId(message))?
        else {
            return Err(Error::malformed(what, "not a number of a namespace"));
        };
        let number = answer.attributes.iter().find_map(|attribute| match attribute {
            NsidAttribute::Id(number) => Some(*number),
            _ => None,
        });
        Ok(number.filter(|number| *number >= 0))
    }

    /// Brings a link up.
    pub fn set_up(&self, index: Ifindex) -> Result<()> {
        self.set_flags("bring up", index, LinkFlags::Up, LinkFlags::Up)
    }

    /// Takes a link down.
    pub fn set_down(&self, index: Ifindex) -> Result<()> {
        self.set_flags("take down", index, LinkFlags::empty(), LinkFlags::Up)
    }

    /// Sets the MTU, in bytes.
    pub fn set_mtu(&self, index: Ifindex, bytes: u32) -> Result<()> {
        self.set(&format!("set the MTU to {bytes} of"), index, vec![LinkAttribute::Mtu(bytes)])
    }

    /// Sets the MAC address.
    pub fn set_mac(&self, index: Ifindex, mac: MacAddr) -> Result<()> {
        let attribute = LinkAttribute::Address(mac.0.to_vec());
        self.set(&format!("set the address to {mac} of"), index, vec![attribute])
    }

    /// Renames a link. Kernels before 6.2 require it to be down.
    pub fn set_name(&self, index: Ifindex, name: &str) -> Result<()> {
        check_link_name(name)?;
        let attribute = LinkAttribute::IfName(name.to_owned());
        self.set(&format!("give the name {name} to"), index, vec![attribute])
    }

    /// Makes a link a port of the bridge `master`, or removes it from its bridge.
    pub fn set_master(&self, index: Ifindex, master: Option<Ifindex>) -> Result<()> {
        let attribute = LinkAttribute::Controller(master.map_or(0, |master| master.0));
        self.set("set the bridge of", index, vec![attribute])
    }

    /// Isolates a bridge port: the bridge forwards nothing between isolated ports.
    ///
    /// # Errors
    /// The link is not a bridge port.
    pub fn isolate(&self, index: Ifindex) -> Result<()> {
        let isolated = vec![InfoBridgePort::Isolated(true)];
        let port = vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(isolated)),
        ];
        let mut message = of_index(index);
        message.attributes = vec![LinkAttribute::LinkInfo(port)];
        // RTM_SETLINK cannot change bridge-port attributes; RTM_NEWLINK can.
        self.change(&format!("isolate link {index}"), RouteNetlinkMessage::NewLink(message), 0)
    }

    /// Moves a link to another namespace, where it arrives down and may have another index.
    pub fn move_to(&self, index: Ifindex, netns: &Netns) -> Result<()> {
        let attribute = LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd());
        self.set(&format!("move to namespace {netns}:"), index, vec![attribute])
    }

    /// Sets the maximum sizes of super-packets; fields that are `None` stay.
    pub fn set_size_limits(&self, index: Ifindex, limits: SizeLimits) -> Result<()> {
        let attributes = [
            limits.gso.map(LinkAttribute::GsoMaxSize),
            limits.gro.map(LinkAttribute::GroMaxSize),
            limits.gso_ipv4.map(LinkAttribute::GsoIpv4MaxSize),
            limits.gro_ipv4.map(LinkAttribute::GroIpv4MaxSize),
        ];
        let attributes = attributes.into_iter().flatten().collect();
        self.set("limit super-packets of", index, attributes)
    }

    /// Switches promiscuous mode. Unlike a socket's request, it lasts until it is switched off.
    pub fn set_promiscuous(&self, index: Ifindex, promiscuous: bool) -> Result<()> {
        let (what, flags) = if promiscuous {
            ("receive all frames of", LinkFlags::Promisc)
        } else {
            ("no longer receive all frames of", LinkFlags::empty())
        };
        self.set_flags(what, index, flags, LinkFlags::Promisc)
    }

    /// Sets the length of the transmit queue, in packets.
    pub fn set_tx_queue_len(&self, index: Ifindex, packets: u32) -> Result<()> {
        let attribute = LinkAttribute::TxQueueLen(packets);
        self.set("set the transmit queue length of", index, vec![attribute])
    }

    fn one_link(&self, what: &str, message: LinkMessage) -> Result<Link> {
        match self.query(what, RouteNetlinkMessage::GetLink(message))? {
            RouteNetlinkMessage::NewLink(message) => Ok(Link::from_message(message)),
            _ => Err(Error::malformed(what.to_owned(), "not a link")),
        }
    }

    fn set_flags(&self, what: &str, index: Ifindex, flags: LinkFlags, of: LinkFlags) -> Result<()> {
        let mut message = of_index(index);
        message.header.flags = flags;
        message.header.change_mask = of;
        self.change(&format!("{what} link {index}"), RouteNetlinkMessage::SetLink(message), 0)
    }

    fn set(&self, what: &str, index: Ifindex, attributes: Vec<LinkAttribute>) -> Result<()> {
        let mut message = of_index(index);
        message.attributes = attributes;
        self.change(&format!("{what} link {index}"), RouteNetlinkMessage::SetLink(message), 0)
    }
}

impl Link {
    /// It can send frames.
    pub const fn is_usable(&self) -> bool {
        self.up && self.running
    }

    /// It is a veth device.
    pub fn is_veth(&self) -> bool {
        self.kind.as_deref() == Some("veth")
    }

    /// It is a veth device whose peer is in another namespace.
    pub fn has_peer_in_other_netns(&self) -> bool {
        self.is_veth() && self.lower.is_some_and(|lower| lower.netns.is_some())
    }

    pub(super) fn from_message(message: LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: Ifindex(message.header.index),
            name: String::new(),
            mac: MacAddr::ZERO,
            is_ethernet: matches!(
                message.header.link_layer_type,
                LinkLayerType::Ether | LinkLayerType::Loopback
            ),
            mtu: 0,
            max_mtu: 0,
            up: flags.contains(LinkFlags::Up),
            running: flags.contains(LinkFlags::Running),
            promiscuous: flags.contains(LinkFlags::Promisc),
            carrier: flags.contains(LinkFlags::LowerUp),
            kind: None,
            master: None,
            tunnel_port: None,
            tun_queues: None,
            lower: None,
            xdp: None,
            limits: SizeLimits::default(),
            tso_max_size: 0,
            tx_queue_len: 0,
            has_qdisc: false,
            tx_queues: 0,
            rx_queues: 0,
            stats: LinkStats::default(),
        };
        let netns = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::LinkNetNsId(number) => Some(*number).filter(|number| *number >= 0),
            _ => None,
        });
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::Link(index) if index != 0 => {
                    link.lower = Some(LowerLink { index: Ifindex(index), netns });
                }
                attribute => link.take(attribute),
            }
        }
        link
    }

    fn take(&mut self, attribute: LinkAttribute) {
        match attribute {
            LinkAttribute::IfName(name) => self.name = name,
            LinkAttribute::Address(bytes) => {
                self.mac = bytes.try_into().map_or(MacAddr::ZERO, MacAddr);
            }
            LinkAttribute::Mtu(bytes) => self.mtu = bytes,
            LinkAttribute::MaxMtu(bytes) => self.max_mtu = bytes,
            LinkAttribute::Carrier(carrier) => self.carrier = carrier != 0,
            LinkAttribute::Controller(index) => {
                self.master = (index != 0).then_some(Ifindex(index));
            }
            LinkAttribute::GsoMaxSize(bytes) => self.limits.gso = Some(bytes),
            LinkAttribute::GroMaxSize(bytes) => self.limits.gro = Some(bytes),
            LinkAttribute::GsoIpv4MaxSize(bytes) => self.limits.gso_ipv4 = Some(bytes),
            LinkAttribute::GroIpv4MaxSize(bytes) => self.limits.gro_ipv4 = Some(bytes),
            LinkAttribute::TsoMaxSize(bytes) => self.tso_max_size = bytes,
            LinkAttribute::TxQueueLen(packets) => self.tx_queue_len = packets,
            LinkAttribute::Qdisc(name) => {
                self.has_qdisc = !["noqueue", "noop"].contains(&name.as_str());
            }
            LinkAttribute::NumTxQueues(count) => self.tx_queues = count,
            LinkAttribute::NumRxQueues(count) => self.rx_queues = count,
            LinkAttribute::LinkInfo(infos) => {
                self.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                self.tunnel_port = infos.iter().find_map(tunnel_port);
                self.tun_queues = infos.iter().find_map(tun_queues);
            }
            LinkAttribute::Xdp(parts) => self.xdp = parts.iter().find_map(xdp_mode),
            LinkAttribute::Stats64(stats) => {
                self.stats = LinkStats {
                    rx_packets: stats.rx_packets,
                    tx_packets: stats.tx_packets,
                    rx_bytes: stats.rx_bytes,
                    tx_bytes: stats.tx_bytes,
                    rx_errors: stats.rx_errors,
                    tx_errors: stats.tx_errors,
                    rx_dropped: stats.rx_dropped,
                    tx_dropped: stats.tx_dropped,
                };
            }
            _ => {}
        }
    }
}

/// Checks a link name: 1 to 15 bytes, no `/`, `:`, `%` or white space, not `.` or `..`.
///
/// # Errors
/// [`Error::Invalid`] when it is invalid.
pub fn check_link_name(name: &str) -> Result<()> {
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%');
    if matches!(name, "" | "." | "..") || name.len() > NAME_MAX_BYTES || name.contains(forbidden) {
        return Err(Error::invalid(
            format!("use {name:?} as a link name"),
            "expected 1 to 15 bytes without '/', ':', '%' or white space",
        ));
    }
    Ok(())
}

fn xdp_mode(part: &LinkXdp) -> Option<XdpMode> {
    match part {
        LinkXdp::Attached(XdpAttached::Driver) => Some(XdpMode::Native),
        LinkXdp::Attached(XdpAttached::SocketBuffer) => Some(XdpMode::Generic),
        LinkXdp::Attached(XdpAttached::Hardware) => Some(XdpMode::Offloaded),
        LinkXdp::Attached(XdpAttached::Multiple) => Some(XdpMode::Several),
        _ => None,
    }
}

/// The UDP port among the attributes of a tunnel device.
fn tunnel_port(info: &LinkInfo) -> Option<u16> {
    match info {
        LinkInfo::Data(InfoData::Vxlan(options)) => {
            options.iter().find_map(|option| match option {
                InfoVxlan::Port(port) => Some(*port),
                _ => None,
            })
        }
        LinkInfo::Data(InfoData::Geneve(options)) => {
            options.iter().find_map(|option| match option {
                InfoGeneve::Port(port) => Some(*port),
                _ => None,
            })
        }
        _ => None,
    }
}

/// The queues among the attributes of a TUN or TAP device.
fn tun_queues(info: &LinkInfo) -> Option<TunQueues> {
    let LinkInfo::Data(InfoData::Tun(attributes)) = info else { return None };
    // Their numbers in the kernel's if_link.h.
    const MULTI_QUEUE: u16 = 7;
    const NUM_QUEUES: u16 = 8;
    const NUM_DISABLED_QUEUES: u16 = 9;
    let mut queues = TunQueues::default();
    for attribute in attributes {
        let mut bytes = [0; 4];
        let len = attribute.value_len();
        if len <= bytes.len() {
            attribute.emit_value(&mut bytes[..len]);
        }
        match attribute.kind() {
            MULTI_QUEUE => queues.is_multi_queue = bytes[0] != 0,
            NUM_QUEUES | NUM_DISABLED_QUEUES => queues.open += u32::from_ne_bytes(bytes),
            _ => {}
        }
    }
    Some(queues)
}

fn of_index(index: Ifindex) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index.0;
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_when_no_link_can_have_them() {
        for name in ["", ".", "..", "a/b", "a b", "a:b", "a%d", "a\0", "sixteen-bytes-xx"] {
            assert!(matches!(check_link_name(name), Err(Error::Invalid { .. })), "{name:?}");
        }
        assert!(check_link_name("fifteen-bytes-x").is_ok());
    }

    #[test]
    fn link_has_no_mac_when_its_address_is_not_ethernet() {
        let mut message = of_index(Ifindex(3));
        message.attributes.push(LinkAttribute::Address(vec![10, 0, 0, 1]));
        let link = Link::from_message(message);
        assert_eq!((link.index, link.mac), (Ifindex(3), MacAddr::ZERO));
    }

    #[test]
    fn link_has_a_program_when_the_kernel_says_how_it_is_attached() {
        let of = |parts| {
            let mut message = of_index(Ifindex(3));
            message.attributes.push(LinkAttribute::Xdp(parts));
            Link::from_message(message).xdp
        };
        assert_eq!(of(vec![LinkXdp::Attached(XdpAttached::None)]), None);
        let generic = vec![LinkXdp::Attached(XdpAttached::SocketBuffer), LinkXdp::ProgId(7)];
        assert_eq!(of(generic), Some(XdpMode::Generic));
    }
}
