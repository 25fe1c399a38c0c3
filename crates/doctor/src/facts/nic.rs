//! The facts of one network device.

use netdev::ethtool::DriverInfo;
use netdev::ethtool::hardware::{
    Channels, FlowType, Hardware, HashFields, Rings, TunnelTable, XdpFeatures,
};
use netdev::{Error, Ethtool, Netlink, Result, Steering};
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
}

impl NicFacts {
    /// Reads the facts of the device `name` in the namespace of the calling thread. Needs no privilege.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when there is no such device.
    pub fn read(name: &str) -> Result<Self> {
        let link = Netlink::open()?.link(name)?;
        let ethtool = Ethtool::open()?;
        let unsupported = |error: &Error| error.errno() == Some(95);
        let driver = match ethtool.driver(name) {
            Ok(driver) => driver,
            Err(error) if unsupported(&error) => DriverInfo::default(),
            Err(error) => return Err(error),
        };
        let features = ethtool.features(name)?.into_iter().map(|(name, feature)| {
            let fixed = !feature.available || feature.never_changed;
            (name, Feature { on: feature.active, fixed, wanted: feature.requested })
        });
        let mut facts = Self {
            name: name.to_owned(),
            kind: link.kind.clone(),
            driver,
            mtu: link.mtu,
            max_mtu: link.max_mtu,
            up: link.up,
            carrier: link.carrier,
            features: Features(features.collect()),
            rx_queues: link.rx_queues,
            steering: Steering::read(&link).ok(),
            ..Self::default()
        };
        // Kernels before 5.6 do not have it: then the rest stays unknown.
        if let Ok(hardware) = Hardware::open() {
            facts.speed_mbps = hardware.speed_mbps(link.index)?;
            facts.channels = hardware.channels(link.index)?;
            facts.rings = hardware.rings(link.index)?;
            facts.tunnel_tables = hardware.tunnel_tables(link.index)?;
            facts.xdp = hardware.xdp(link.index)?;
            if let Some(table) = hardware.indirection(link.index)? {
                let mut fields = BTreeMap::new();
                for flow in FlowType::ALL {
                    if let Some(hashed) = hardware.hash_fields(name, flow)? {
                        fields.insert(flow, hashed);
                    }
                }
                facts.rss = Some(Rss { table, fields });
            }
        }
        Ok(facts)
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
