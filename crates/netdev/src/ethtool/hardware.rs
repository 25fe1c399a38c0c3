//! Hardware properties of a device over the generic netlink families `ethtool` and `netdev`:
//! queues, rings, speed, UDP tunnel ports, receive-side scaling, XDP.
//!
//! No privilege is needed. Properties that a driver does not report are `None`.

use super::Ethtool;
use crate::attributes::{AttributeBuf, Attributes};
use crate::genetlink::GenericFamily;
use crate::{Error, Ifindex, Result};
use std::collections::BTreeMap;

const LINKMODES_GET: u8 = 4;
const RINGS_GET: u8 = 15;
const CHANNELS_GET: u8 = 17;
const TUNNEL_INFO_GET: u8 = 28;
const RSS_GET: u8 = 38;
/// The attribute of every request that selects the device.
const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;

const ETHTOOL_GRXFH: u32 = 0x29;
/// `struct ethtool_rxnfc` in 32-bit words, rounded up; only the first four are used.
const RXNFC_WORDS: usize = 64;

/// A handle for the devices of the namespace in which it was opened.
#[derive(Debug)]
pub struct Hardware {
    ethtool: GenericFamily,
    /// `None` before Linux 6.3.
    netdev: Option<GenericFamily>,
    ioctl: Ethtool,
}

/// The number of queues in use, and the maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Channels {
    /// Receive queues, including combined ones.
    pub rx: u32,
    /// Transmit queues, including combined ones.
    pub tx: u32,
    /// The maximum of receive queues.
    pub rx_max: u32,
    /// The maximum of transmit queues.
    pub tx_max: u32,
}

/// The ring sizes in frames, and the maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rings {
    /// Size of each receive ring.
    pub rx: u32,
    /// Size of each transmit ring.
    pub tx: u32,
    /// The maximum size of a receive ring.
    pub rx_max: u32,
    /// The maximum size of a transmit ring.
    pub tx_max: u32,
}

/// A table of UDP ports on which a device recognises tunnels.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TunnelTable {
    /// Its capacity.
    pub size: u32,
    /// The tunnel types that it accepts: `vxlan`, `geneve`, `vxlan-gpe`.
    pub types: Vec<String>,
    /// The ports in it.
    pub ports: Vec<u16>,
}

/// A flow type, for which receive-side scaling can hash its own set of fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FlowType {
    /// TCP over IPv4.
    Tcp4,
    /// UDP over IPv4.
    Udp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv6.
    Udp6,
    /// Other IPv4.
    Ip4,
    /// Other IPv6.
    Ip6,
}

impl FlowType {
    /// All flow types.
    pub const ALL: [Self; 6] =
        [Self::Tcp4, Self::Udp4, Self::Tcp6, Self::Udp6, Self::Ip4, Self::Ip6];

    /// Its name in `ethtool -N DEVICE rx-flow-hash`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp4 => "tcp4",
            Self::Udp4 => "udp4",
            Self::Tcp6 => "tcp6",
            Self::Udp6 => "udp6",
            Self::Ip4 => "ip4",
            Self::Ip6 => "ip6",
        }
    }

    /// The attribute that holds its fields (ETHTOOL_A_FLOW_*).
    const fn attribute(self) -> u16 {
        match self {
            Self::Ip4 => 2,
            Self::Ip6 => 3,
            Self::Tcp4 => 4,
            Self::Tcp6 => 5,
            Self::Udp4 => 6,
            Self::Udp6 => 7,
        }
    }

    /// Its number in linux/ethtool.h.
    const fn number(self) -> u32 {
        match self {
            Self::Tcp4 => 0x01,
            Self::Udp4 => 0x02,
            Self::Tcp6 => 0x05,
            Self::Udp6 => 0x06,
            Self::Ip4 => 0x10,
            Self::Ip6 => 0x11,
        }
    }
}

/// The header fields that receive-side scaling hashes (RXH_*).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HashFields(pub u64);

impl HashFields {
    /// Source and destination IP addresses.
    pub const fn has_addresses(self) -> bool {
        self.0 & 0b11_0000 == 0b11_0000
    }

    /// The first four bytes after the IP header: the ports of TCP and UDP.
    pub const fn has_ports(self) -> bool {
        self.0 & 0b1100_0000 == 0b1100_0000
    }
}

/// Receive-side scaling: a hash of header fields selects the receive queue of a packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rss {
    /// The indirection table: the queue for each value of the hash.
    pub table: Vec<u32>,
    /// The fields that are hashed, for the flow types that the driver reports.
    pub fields: BTreeMap<FlowType, HashFields>,
}

impl Rss {
    /// The number of queues that get packets.
    pub fn queues(&self) -> usize {
        let mut queues = self.table.clone();
        queues.sort_unstable();
        queues.dedup();
        queues.len()
    }
}

/// The XDP features of a driver (enum netdev_xdp_act).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XdpFeatures(pub u64);

impl XdpFeatures {
    /// Native XDP: the driver runs the program.
    pub const fn is_native(self) -> bool {
        self.0 & 1 != 0
    }
}

impl Hardware {
    /// Opens a handle for the namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::is_not_found`] on a kernel without ethtool netlink (before 5.6).
    pub fn open() -> Result<Self> {
        let netdev = match GenericFamily::open("netdev") {
            Ok(family) => Some(family),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        Ok(Self { ethtool: GenericFamily::open("ethtool")?, netdev, ioctl: Ethtool::open()? })
    }

    /// Link speed in Mbit/s; `None` when the device has no speed or no carrier.
    pub fn speed_mbps(&self, link: Ifindex) -> Result<Option<u32>> {
        const SPEED: u16 = 5;
        let answer = self.one("read the speed of", LINKMODES_GET, link)?;
        let speed = answer.and_then(|bytes| Attributes::new(&bytes).u32(SPEED));
        Ok(speed.filter(|speed| !matches!(*speed, 0 | u32::MAX)))
    }

    /// The number of queues.
    pub fn channels(&self, link: Ifindex) -> Result<Option<Channels>> {
        let answer = self.one("count the channels of", CHANNELS_GET, link)?;
        Ok(answer.map(|bytes| {
            let at = |kind| Attributes::new(&bytes).u32(kind).unwrap_or(0);
            let (rx_max, tx_max, both_max) = (at(2), at(3), at(5));
            let (rx, tx, both) = (at(6), at(7), at(9));
            Channels {
                rx: rx.saturating_add(both),
                tx: tx.saturating_add(both),
                rx_max: rx_max.max(both_max),
                tx_max: tx_max.max(both_max),
            }
        }))
    }

    /// The ring sizes.
    pub fn rings(&self, link: Ifindex) -> Result<Option<Rings>> {
        let answer = self.one("measure the rings of", RINGS_GET, link)?;
        Ok(answer.map(|bytes| {
            let at = |kind| Attributes::new(&bytes).u32(kind).unwrap_or(0);
            Rings { rx_max: at(2), tx_max: at(5), rx: at(6), tx: at(9) }
        }))
    }

    /// The tables of UDP tunnel ports; `None` when the device has none.
    pub fn tunnel_tables(&self, link: Ifindex) -> Result<Option<Vec<TunnelTable>>> {
        let answer = self.one("read the tunnel ports of", TUNNEL_INFO_GET, link)?;
        Ok(answer.map(|bytes| tunnel_tables(Attributes::new(&bytes))))
    }

    /// Receive-side scaling; `None` without it. `name` is the device's name: kernels before 6.17
    /// report the hashed fields by ioctl only.
    pub fn rss(&self, link: Ifindex, name: &str) -> Result<Option<Rss>> {
        let answer = self.one("read the hash table of", RSS_GET, link)?;
        let Some((table, fields)) = answer.and_then(|bytes| parse_rss(Attributes::new(&bytes)))
        else {
            return Ok(None);
        };
        if let Some(fields) = fields {
            return Ok(Some(Rss { table, fields }));
        }
        let mut fields = BTreeMap::new();
        for flow in FlowType::ALL {
            if let Some(hashed) = self.hash_fields(name, flow)? {
                fields.insert(flow, hashed);
            }
        }
        Ok(Some(Rss { table, fields }))
    }

    /// The hashed fields of a flow type; `None` when the driver does not report them.
    fn hash_fields(&self, name: &str, flow: FlowType) -> Result<Option<HashFields>> {
        let mut words = vec![0; RXNFC_WORDS];
        words[0] = ETHTOOL_GRXFH;
        words[1] = flow.number();
        match self.ioctl.call("read the hashed fields of", name, &mut words) {
            Ok(()) => {
                let (low, high) = (words[2].to_ne_bytes(), words[3].to_ne_bytes());
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&low);
                bytes[4..].copy_from_slice(&high);
                Ok(Some(HashFields(u64::from_ne_bytes(bytes))))
            }
            Err(error) if is_unsupported(&error) || error.is_permission() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The XDP features of the driver; `None` before Linux 6.3.
    pub fn xdp(&self, link: Ifindex) -> Result<Option<XdpFeatures>> {
        const DEV_GET: u8 = 1;
        const IFINDEX: u16 = 1;
        const XDP_FEATURES: u16 = 3;
        let Some(family) = &self.netdev else { return Ok(None) };
        let attributes = AttributeBuf::default().push(IFINDEX, &link.0.to_ne_bytes());
        let what = format!("read the XDP features of link {link}");
        let answers = family.get(&what, DEV_GET, attributes)?;
        let features = answers.first().and_then(|a| Attributes::new(a).number(XDP_FEATURES));
        Ok(features.map(XdpFeatures))
    }

    /// Queries one device; `None` when its driver does not support the query.
    fn one(&self, what: &str, command: u8, link: Ifindex) -> Result<Option<Vec<u8>>> {
        let device = AttributeBuf::default().push(HEADER_DEV_INDEX, &link.0.to_ne_bytes());
        let attributes = AttributeBuf::default().nest(HEADER, &device);
        let what = format!("{what} link {link}");
        match self.ethtool.get(&what, command, attributes) {
            Ok(answers) => Ok(answers.into_iter().next()),
            Err(error) if is_unsupported(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

type Fields = BTreeMap<FlowType, HashFields>;

/// The indirection table, and the hashed fields where the kernel reports them here (Linux 6.17).
fn parse_rss(answer: Attributes<'_>) -> Option<(Vec<u32>, Option<Fields>)> {
    const INDIRECTION: u16 = 4;
    const FLOW_HASH: u16 = 8;
    let words = answer.get(INDIRECTION)?.chunks_exact(4).filter_map(|word| word.try_into().ok());
    let table: Vec<u32> = words.map(u32::from_ne_bytes).collect();
    let fields = answer.nested(FLOW_HASH).map(|flows| {
        let of = |flow: FlowType| Some((flow, HashFields(flows.number(flow.attribute())?)));
        FlowType::ALL.into_iter().filter_map(of).collect()
    });
    (!table.is_empty()).then_some((table, fields))
}

/// The driver or the kernel does not support the query.
fn is_unsupported(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOENT))
}

fn tunnel_tables(answer: Attributes<'_>) -> Vec<TunnelTable> {
    const UDP_PORTS: u16 = 2;
    const TABLE: u16 = 1;
    const TABLE_SIZE: u16 = 1;
    const TABLE_TYPES: u16 = 2;
    const TABLE_ENTRY: u16 = 3;
    const ENTRY_PORT: u16 = 1;
    let ports = answer.nested(UDP_PORTS).unwrap_or_default();
    ports
        .all(TABLE)
        .map(|table| TunnelTable {
            size: table.u32(TABLE_SIZE).unwrap_or(0),
            types: table.nested(TABLE_TYPES).map(set_bits).unwrap_or_default(),
            ports: table
                .all(TABLE_ENTRY)
                .filter_map(|entry| entry.get(ENTRY_PORT)?.try_into().ok())
                .map(u16::from_be_bytes)
                .collect(),
        })
        .collect()
}

/// The names in an ethtool bit set, which comes with a mask or as a list of the bits that are set.
fn set_bits(set: Attributes<'_>) -> Vec<String> {
    const IS_LIST: u16 = 1;
    const BITS: u16 = 3;
    const BIT: u16 = 1;
    const BIT_NAME: u16 = 2;
    const BIT_VALUE: u16 = 3;
    let is_list = set.get(IS_LIST).is_some();
    let bits = set.nested(BITS).unwrap_or_default();
    bits.all(BIT)
        .filter(|bit| is_list || bit.get(BIT_VALUE).is_some())
        .filter_map(|bit| bit.text(BIT_NAME))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_tells_what_it_is_made_of_without_privilege() {
        let hardware = Hardware::open().unwrap();
        let lo = Ifindex(1);
        assert_eq!(hardware.speed_mbps(lo).unwrap(), None);
        assert_eq!(hardware.tunnel_tables(lo).unwrap(), None);
        assert_eq!(hardware.rss(lo, "lo").unwrap(), None);
        assert_eq!(hardware.hash_fields("lo", FlowType::Udp4).unwrap(), None);
        assert!(!hardware.xdp(lo).unwrap().unwrap_or_default().is_native());
        assert!(hardware.channels(Ifindex(u32::MAX >> 1)).unwrap_err().is_not_found());
    }

    #[test]
    fn hashed_fields_are_read_with_the_table_where_the_kernel_sends_them() {
        let table = [0u32, 1, 0, 1].map(u32::to_ne_bytes).concat();
        let flows = AttributeBuf::default()
            .push(4, &0xf0u32.to_ne_bytes())
            .push(6, &0x30u64.to_ne_bytes())
            .push(20, &[0; 4]);
        let bytes = AttributeBuf::default().push(4, &table).nest(8, &flows).into_bytes();
        let (queues, fields) = parse_rss(Attributes::new(&bytes)).unwrap();
        assert_eq!(queues, [0, 1, 0, 1]);
        let fields = fields.unwrap();
        assert!(fields[&FlowType::Tcp4].has_ports() && !fields[&FlowType::Udp4].has_ports());
        assert_eq!(fields.len(), 2);
        let before = AttributeBuf::default().push(4, &table).into_bytes();
        assert_eq!(parse_rss(Attributes::new(&before)), Some((vec![0, 1, 0, 1], None)));
        assert_eq!(parse_rss(Attributes::new(&[])), None);
    }

    #[test]
    fn tables_of_tunnel_ports_are_read_as_the_kernel_sends_them() {
        let bit = |name| AttributeBuf::default().push(1, &[0; 4]).text(2, name);
        let bits = AttributeBuf::default().nest(1, &bit("vxlan")).nest(1, &bit("vxlan-gpe"));
        let types = AttributeBuf::default().push(1, &[]).nest(3, &bits);
        let entry = AttributeBuf::default().push(1, &4789u16.to_be_bytes()).push(2, &[0; 4]);
        let table = AttributeBuf::default().push(1, &4u32.to_ne_bytes()).nest(2, &types);
        let tables = AttributeBuf::default().nest(1, &table.nest(3, &entry));
        let bytes = AttributeBuf::default().nest(2, &tables).into_bytes();
        let expected = TunnelTable {
            size: 4,
            types: vec!["vxlan".to_owned(), "vxlan-gpe".to_owned()],
            ports: vec![4789],
        };
        assert_eq!(tunnel_tables(Attributes::new(&bytes)), [expected]);
    }
}
