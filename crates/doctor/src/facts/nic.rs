//! The facts of one network device.

use netdev::ethtool::DriverInfo;
use netdev::ethtool::hardware::{
    Channels, FlowType, Hardware, HashFields, Rings, Spreading, TunnelTable, XdpFeatures,
};
use netdev::{Error, Ethtool, Link, Netlink, Result, Steering, XdpMode};
use std::collections::BTreeMap;

/// An offload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feature {
    /// It is on.
    pub on: bool,
    /// It cannot be switched.
    pub fixed: bool,
    /// Somebody wants it on; one that is wanted and off waits for another that it depends on.
    pub wanted: bool,
}

/// The offloads of a device, by the kernel's names (`rx-gro`, `tx-udp_tnl-segmentation` ...).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features(pub BTreeMap<String, Feature>);

impl Features {
    /// Reads those of the device `name`.
    ///
    /// # Errors
    /// What the kernel answers, such as that there is no such device.
    pub fn read(ethtool: &Ethtool, name: &str) -> Result<Self> {
        let features = ethtool.features(name)?.into_iter().map(|(name, feature)| {
            let fixed = !feature.available || feature.never_changed;
            (name, Feature { on: feature.active, fixed, wanted: feature.requested })
        });
        Ok(Self(features.collect()))
    }

    /// What is known of an offload; nothing is on that this kernel does not have.
    pub fn get(&self, name: &str) -> Feature {
        self.0.get(name).copied().unwrap_or(Feature { on: false, fixed: true, wanted: false })
    }

    /// True when it is on.
    pub fn on(&self, name: &str) -> bool {
        self.get(name).on
    }

    /// True when somebody has switched it off, and could switch it on.
    pub fn switched_off(&self, name: &str) -> bool {
        let feature = self.get(name);
        !feature.on && !feature.fixed && !feature.wanted
    }
}

/// Receive-side scaling: which queue gets a packet, by a hash of some of its fields.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rss {
    /// The queue for each value of the hash.
    pub table: Vec<u32>,
    /// The fields that are hashed, for the kinds of packets of which the driver says it.
    pub fields: BTreeMap<FlowType, HashFields>,
}

impl Rss {
    /// How many queues get packets.
    pub fn queues(&self) -> usize {
        let mut queues = self.table.clone();
        queues.sort_unstable();
        queues.dedup();
        queues.len()
    }
}

/// What is known of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NicFacts {
    /// Its name.
    pub name: String,
    /// What software device it is (`veth`, `bridge` ...); `None` for hardware.
    pub kind: Option<String>,
    /// Who drives it.
    pub driver: DriverInfo,
    /// Mbit/s; `None` without a speed, or without carrier.
    pub speed_mbps: Option<u32>,
    /// The MTU, in bytes of IP packet.
    pub mtu: u32,
    /// The highest MTU that it takes; 0 when nobody says.
    pub max_mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// There is a carrier.
    pub carrier: bool,
    /// Its offloads.
    pub features: Features,
    /// Its queues, as its driver says.
    pub channels: Option<Channels>,
    /// Its receive queues, as the kernel has them.
    pub rx_queues: u32,
    /// Its rings.
    pub rings: Option<Rings>,
    /// Its tables of tunnel ports; `None` when it has none.
    pub tunnel_tables: Option<Vec<TunnelTable>>,
    /// Receive-side scaling; `None` without.
    pub rss: Option<Rss>,
    /// RPS, RFS and XPS; `None` when they could not be read.
    pub steering: Option<Steering>,
    /// What it can do with XDP; `None` when the kernel does not say.
    pub xdp: Option<XdpFeatures>,
    /// How a program is attached to it by XDP; `None` without.
    pub xdp_program: Option<XdpMode>,
    /// It is one of the ports of a bond or team.
    pub is_bonded: bool,
    /// This kernel merges nothing behind tags that are in the frame.
    pub tags_stop_gro: bool,
    /// What could not be read: the option of ethtool that shows it, and the error.
    pub unread: Vec<(&'static str, String)>,
}

/// What was read, or nothing with a note that it could not be.
fn note<T: Default>(
    unread: &mut Vec<(&'static str, String)>,
    option: &'static str,
    read: Result<T>,
) -> T {
    read.unwrap_or_else(|error| {
        unread.push((option, error.to_string()));
        T::default()
    })
}

impl NicFacts {
    /// Reads the facts of the device `name` in the namespace of the calling thread. Needs no privilege.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when there is no such device; others when neither netlink nor ethtool answers at all. What else fails
    /// is in `unread`.
    pub fn read(name: &str) -> Result<Self> {
        let netlink = Netlink::open()?;
        let link = netlink.link(name)?;
        let is_bond = |master: Link| matches!(master.kind.as_deref(), Some("bond" | "team"));
        let mut unread = Vec::new();
        let ethtool = Ethtool::open()?;
        let unsupported = |error: &Error| error.errno() == Some(95);
        let driver = match ethtool.driver(name) {
            Err(error) if unsupported(&error) => DriverInfo::default(),
            driver => note(&mut unread, "-i", driver),
        };
        let features = note(&mut unread, "-k", Features::read(&ethtool, name));
        let mut facts = Self {
            name: name.to_owned(),
            kind: link.kind.clone(),
            driver,
            mtu: link.mtu,
            max_mtu: link.max_mtu,
            up: link.up,
            carrier: link.carrier,
            features,
            rx_queues: link.rx_queues,
            steering: Steering::read(&link).ok(),
            xdp_program: link.xdp,
            tags_stop_gro: super::kernel::tags_stop_gro(),
            is_bonded: link
                .master
                .and_then(|master| netlink.link_by_index(master).ok())
                .is_some_and(is_bond),
            ..Self::default()
        };
        // Kernels before 5.6 do not have it: then the rest stays unknown.
        if let Ok(hardware) = Hardware::open() {
            facts.speed_mbps = note(&mut unread, "", hardware.speed_mbps(link.index));
            facts.channels = note(&mut unread, "-l", hardware.channels(link.index));
            facts.rings = note(&mut unread, "-g", hardware.rings(link.index));
            facts.tunnel_tables =
                note(&mut unread, "--show-tunnels", hardware.tunnel_tables(link.index));
            facts.xdp = note(&mut unread, "-i", hardware.xdp(link.index));
            let spread = note(&mut unread, "-x", hardware.spreading(link.index, name));
            facts.rss = spread.map(|Spreading { table, fields }| Rss { table, fields });
        }
        Ok(Self { unread, ..facts })
    }

    /// True when it is software: a veth, a bridge, a TAP.
    pub fn is_virtual(&self) -> bool {
        self.kind.is_some()
    }

    /// How many receive queues are in use.
    pub fn active_rx_queues(&self) -> usize {
        let by_rss = self.rss.as_ref().map(Rss::queues);
        let by_driver = self.channels.map(|channels| channels.rx as usize).filter(|&n| n > 0);
        by_rss.or(by_driver).unwrap_or(self.rx_queues as usize)
    }

    /// The processors to which RPS hands packets, together.
    pub fn rps_cpus(&self) -> usize {
        let queues = self.steering.iter().flat_map(|steering| &steering.rx);
        let mut cpus: Vec<usize> = queues.flat_map(|queue| queue.rps_cpus.iter()).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus.len()
    }
}
