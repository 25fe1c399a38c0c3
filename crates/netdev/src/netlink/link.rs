//! Links: create, delete, look up, list, change.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use wire::{MacAddr, Vni};

use super::Netlink;
use crate::{Error, Netns, Result};

/// The longest name of a link, in bytes (IFNAMSIZ less the final zero).
const NAME_MAX_BYTES: usize = 15;

/// The number of a link, unique within its namespace and at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ifindex(pub u32);

impl fmt::Display for Ifindex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A link as the kernel describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its number.
    pub index: Ifindex,
    /// Its name, unique within the namespace.
    pub name: String,
    /// Its address; zero for devices that are not Ethernet.
    pub mac: MacAddr,
    /// The longest L3 packet, in bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Operational: up and with a carrier.
    pub running: bool,
    /// The lower layer reports a carrier (always, for devices that cannot tell).
    pub carrier: bool,
    /// `veth`, `bridge`, `vxlan`, `tun` ...; `None` for hardware and the loopback device.
    pub kind: Option<String>,
    /// The bridge or bond that it is a port of.
    pub master: Option<Ifindex>,
    /// How long super-packets may be.
    pub limits: SizeLimits,
    /// The longest super-packet that the driver's TCP segmentation takes, in bytes; 0 when the kernel does not say.
    pub tso_max_size: u32,
    /// The length of the transmit queue, in packets.
    pub tx_queue_len: u32,
    /// Transmit queues.
    pub tx_queues: u32,
    /// Receive queues.
    pub rx_queues: u32,
    /// Counters since the device was made.
    pub stats: LinkStats,
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

/// How long super-packets may be, in bytes. `None`: the kernel does not know the limit (or, when setting, leave it).
///
/// The kernel lets `gso` and `gro` rule IPv6 and, up to 65,536, IPv4 too: setting one to such a value sets its IPv4
/// counterpart as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SizeLimits {
    /// Longest super-packet handed to the device.
    pub gso: Option<u32>,
    /// Longest super-packet built on receive.
    pub gro: Option<u32>,
    /// The same as `gso`, for IPv4 (Linux 6.3).
    pub gso_ipv4: Option<u32>,
    /// The same as `gro`, for IPv4 (Linux 6.3).
    pub gro_ipv4: Option<u32>,
}

impl SizeLimits {
    /// The same limit for all four.
    pub const fn all(bytes: u32) -> Self {
        let limit = Some(bytes);
        Self { gso: limit, gro: limit, gso_ipv4: limit, gro_ipv4: limit }
    }
}

/// What every new link may be given. Only the name is required.
#[derive(Clone, Debug, Default)]
pub struct LinkSpec<'a> {
    name: &'a str,
    mac: Option<MacAddr>,
    mtu: Option<u32>,
    up: bool,
    queues: Option<u32>,
    tx_queue_len: Option<u32>,
    netns: Option<&'a Netns>,
    master: Option<Ifindex>,
}

impl<'a> LinkSpec<'a> {
    /// A link `name`, down, with a random address and the default MTU of its kind.
    pub fn new(name: &'a str) -> Self {
        Self { name, ..Self::default() }
    }

    /// With this address.
    pub fn mac(self, mac: MacAddr) -> Self {
        Self { mac: Some(mac), ..self }
    }

    /// With this MTU, in bytes.
    pub fn mtu(self, bytes: u32) -> Self {
        Self { mtu: Some(bytes), ..self }
    }

    /// Up from the start.
    pub fn up(self) -> Self {
        Self { up: true, ..self }
    }

    fn down(self) -> Self {
        Self { up: false, ..self }
    }

    /// With this many transmit and receive queues.
    pub fn queues(self, count: u32) -> Self {
        Self { queues: Some(count), ..self }
    }

    /// With this transmit queue length, in packets.
    pub fn tx_queue_len(self, packets: u32) -> Self {
        Self { tx_queue_len: Some(packets), ..self }
    }

    /// As a port of the bridge `master`.
    pub fn master(self, master: Ifindex) -> Self {
        Self { master: Some(master), ..self }
    }

    /// In this namespace. A tunnel's *underlay* remains the namespace of the [`Netlink`] that creates it.
    pub fn netns(self, netns: &'a Netns) -> Self {
        Self { netns: Some(netns), ..self }
    }

    fn message(&self) -> Result<LinkMessage> {
        check_link_name(self.name)?;
        let mut message = LinkMessage::default();
        if self.up {
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
        }
        let attributes = &mut message.attributes;
        attributes.push(LinkAttribute::IfName(self.name.to_owned()));
        attributes.extend(self.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        attributes.extend(self.queues.map(LinkAttribute::NumTxQueues));
        attributes.extend(self.queues.map(LinkAttribute::NumRxQueues));
        attributes.extend(self.tx_queue_len.map(LinkAttribute::TxQueueLen));
        attributes.extend(self.master.map(|master| LinkAttribute::Controller(master.0)));
        attributes
            .extend(self.netns.map(|netns| LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd())));
        Ok(message)
    }
}

/// The kind of a new link.
#[derive(Clone, Debug)]
pub enum LinkKind<'a> {
    /// A pair of devices, each of which receives what the other sends.
    Veth {
        /// The other end, often in another namespace. Number of queues and the rest are its own.
        peer: LinkSpec<'a>,
    },
    /// A learning switch of the kernel, spanning tree off.
    Bridge,
    /// The kernel's VXLAN (RFC 7348).
    Vxlan(VxlanSpec),
}

/// The options of a VXLAN device.
#[derive(Clone, Debug)]
pub struct VxlanSpec {
    /// Its network, or `None` for a device whose VNI and end points come with each packet (`external`).
    pub vni: Option<Vni>,
    /// Address to send from; also selects IPv4 or IPv6 for the socket.
    pub local: Option<IpAddr>,
    /// Where frames go that no forwarding entry claims.
    pub remote: Option<IpAddr>,
    /// UDP destination port, and the port listened on.
    pub port: u16,
    /// Learn the end point of each source address.
    pub learning: bool,
    /// Send outer UDP checksums over IPv4.
    pub udp_checksum: bool,
    /// Accept (and send) zero outer UDP checksums over IPv6 (RFC 6936).
    pub udp_zero_checksum6: bool,
    /// The link to send through.
    pub underlay: Option<Ifindex>,
}

impl VxlanSpec {
    /// The registered UDP port.
    pub const PORT: u16 = 4789;

    /// A device of the network `vni`, without learning, with the kernel's defaults for the rest.
    pub const fn new(vni: Vni) -> Self {
        Self { vni: Some(vni), ..Self::external() }
    }

    /// A device whose VNI and end points come with each packet. Merely being up it makes the kernel coalesce received
    /// VXLAN segments on its port before a tc program sees them.
    pub const fn external() -> Self {
        Self {
            vni: None,
            local: None,
            remote: None,
            port: Self::PORT,
            learning: false,
            udp_checksum: true,
            udp_zero_checksum6: false,
            underlay: None,
        }
    }

    fn attributes(&self) -> Vec<InfoVxlan> {
        let mut attributes = vec![
            InfoVxlan::Port(self.port),
            InfoVxlan::Learning(self.learning),
            InfoVxlan::UDPCsum(self.udp_checksum),
        ];
        attributes.push(match self.vni {
            Some(vni) => InfoVxlan::Id(vni.value()),
            None => InfoVxlan::CollectMetadata(true),
        });
        attributes.extend(self.local.map(|local| match local {
            IpAddr::V4(address) => InfoVxlan::Local(address),
            IpAddr::V6(address) => InfoVxlan::Local6(address),
        }));
        attributes.extend(self.remote.map(|remote| match remote {
            IpAddr::V4(address) => InfoVxlan::Group(address),
            IpAddr::V6(address) => InfoVxlan::Group6(address),
        }));
        if self.udp_zero_checksum6 {
            attributes.push(InfoVxlan::UDPZeroCsumTX(true));
            attributes.push(InfoVxlan::UDPZeroCsumRX(true));
        }
        attributes.extend(self.underlay.map(|index| InfoVxlan::Link(index.0)));
        attributes
    }
}

impl LinkKind<'_> {
    fn info(&self) -> Result<Vec<LinkInfo>> {
        Ok(match self {
            Self::Veth { peer } => vec![
                LinkInfo::Kind(InfoKind::Veth),
                // The peer is configured before the two ends know each other, and cannot be opened then.
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer.clone().down().message()?))),
            ],
            Self::Bridge => vec![LinkInfo::Kind(InfoKind::Bridge)],
            Self::Vxlan(spec) => vec![
                LinkInfo::Kind(InfoKind::Vxlan),
                LinkInfo::Data(InfoData::Vxlan(spec.attributes())),
            ],
        })
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Veth { .. } => "veth",
            Self::Bridge => "bridge",
            Self::Vxlan(_) => "vxlan",
        }
    }
}

impl Netlink {
    /// Creates a link and tells its number (in the namespace that it was created in).
    ///
    /// # Errors
    /// [`Error::is_exists`] when the name is taken, [`Error::Invalid`] for a name that no link can have,
    /// `EOPNOTSUPP` when the kernel lacks the kind.
    pub fn create(&self, spec: &LinkSpec<'_>, kind: &LinkKind<'_>) -> Result<Ifindex> {
        let what = format!("create {} link {}", kind.name(), spec.name);
        let mut message = spec.message()?;
        message.attributes.push(LinkAttribute::LinkInfo(kind.info()?));
        self.change(&what, RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)?;
        if let LinkKind::Veth { peer } = kind
            && peer.up
            && let Err(error) = self.on(peer, |netlink, index| netlink.set_up(index))
        {
            // Of two errors the first one tells; what is left then is a pair with one end down.
            let _ = self.on(spec, Self::delete);
            return Err(error);
        }
        self.on(spec, |_, index| Ok(index))
    }

    /// Does `work` with a handle for the namespace of `spec` and the number of its link there.
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
    /// [`Error::is_not_found`] when there is none of that name.
    pub fn link(&self, name: &str) -> Result<Link> {
        check_link_name(name)?;
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.one_link(&format!("look up link {name}"), message)
    }

    /// The link with the number `index`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when there is none of that number.
    pub fn link_by_index(&self, index: Ifindex) -> Result<Link> {
        self.one_link(&format!("look up link {index}"), of_index(index))
    }

    /// The number of the link `name`; see [`Netlink::link`].
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

    /// Brings a link up.
    pub fn set_up(&self, index: Ifindex) -> Result<()> {
        self.set_flags("bring up", index, LinkFlags::Up)
    }

    /// Takes a link down.
    pub fn set_down(&self, index: Ifindex) -> Result<()> {
        self.set_flags("take down", index, LinkFlags::empty())
    }

    /// Sets the MTU, in bytes.
    pub fn set_mtu(&self, index: Ifindex, bytes: u32) -> Result<()> {
        self.set(&format!("set the MTU to {bytes} of"), index, vec![LinkAttribute::Mtu(bytes)])
    }

    /// Sets the address.
    pub fn set_mac(&self, index: Ifindex, mac: MacAddr) -> Result<()> {
        let attribute = LinkAttribute::Address(mac.0.to_vec());
        self.set(&format!("set the address to {mac} of"), index, vec![attribute])
    }

    /// Renames a link; kernels before 6.2 want it to be down.
    pub fn set_name(&self, index: Ifindex, name: &str) -> Result<()> {
        check_link_name(name)?;
        let attribute = LinkAttribute::IfName(name.to_owned());
        self.set(&format!("give the name {name} to"), index, vec![attribute])
    }

    /// Makes a link a port of the bridge `master`, or of none.
    pub fn set_master(&self, index: Ifindex, master: Option<Ifindex>) -> Result<()> {
        let attribute = LinkAttribute::Controller(master.map_or(0, |master| master.0));
        self.set("set the bridge of", index, vec![attribute])
    }

    /// Moves a link to another namespace, where it arrives down and perhaps with another number.
    pub fn move_to(&self, index: Ifindex, netns: &Netns) -> Result<()> {
        let attribute = LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd());
        self.set(&format!("move to namespace {netns}:"), index, vec![attribute])
    }

    /// Sets how long super-packets may be; fields that are `None` remain.
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

    fn set_flags(&self, what: &str, index: Ifindex, up: LinkFlags) -> Result<()> {
        let mut message = of_index(index);
        message.header.flags = up;
        message.header.change_mask = LinkFlags::Up;
        self.change(&format!("{what} link {index}"), RouteNetlinkMessage::SetLink(message), 0)
    }

    fn set(&self, what: &str, index: Ifindex, attributes: Vec<LinkAttribute>) -> Result<()> {
        let mut message = of_index(index);
        message.attributes = attributes;
        self.change(&format!("{what} link {index}"), RouteNetlinkMessage::SetLink(message), 0)
    }
}

impl Link {
    pub(super) fn from_message(message: LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: Ifindex(message.header.index),
            name: String::new(),
            mac: MacAddr::ZERO,
            mtu: 0,
            up: flags.contains(LinkFlags::Up),
            running: flags.contains(LinkFlags::Running),
            carrier: flags.contains(LinkFlags::LowerUp),
            kind: None,
            master: None,
            limits: SizeLimits::default(),
            tso_max_size: 0,
            tx_queue_len: 0,
            tx_queues: 0,
            rx_queues: 0,
            stats: LinkStats::default(),
        };
        for attribute in message.attributes {
            link.take(attribute);
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
            LinkAttribute::NumTxQueues(count) => self.tx_queues = count,
            LinkAttribute::NumRxQueues(count) => self.rx_queues = count,
            LinkAttribute::LinkInfo(infos) => {
                self.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
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

/// Checks that a link can have this name: 1 to 15 bytes, no `/`, `:`, `%` or white space, not `.` or `..`.
///
/// # Errors
/// [`Error::Invalid`] otherwise.
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
}
