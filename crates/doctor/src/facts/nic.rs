//! The facts of one network device.

use netdev::ethtool::DriverInfo;
use netdev::ethtool::hardware::{Channels, Hardware, Rings, Rss, TunnelTable, XdpFeatures};
use netdev::{Error, Ethtool, Link, Netlink, Result, Steering, XdpMode};
use std::collections::BTreeMap;

/// The state of an offload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feature {
    /// It is on.
    pub on: bool,
    /// It cannot be changed.
    pub fixed: bool,
    /// It is requested. A requested offload stays off while an offload that it depends on is off.
    pub wanted: bool,
}

/// The offloads of a device, by the kernel's names (`rx-gro`, `tx-udp_tnl-segmentation` ...).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features(pub BTreeMap<String, Feature>);

impl Features {
    /// Reads the offloads of the device `name`.
    ///
    /// # Errors
    /// The kernel's error, for example that there is no such device.
    pub fn read(ethtool: &Ethtool, name: &str) -> Result<Self> {
        let features = ethtool.features(name)?.into_iter().map(|(name, feature)| {
            let fixed = !feature.available || feature.never_changed;
            (name, Feature { on: feature.active, fixed, wanted: feature.requested })
        });
        Ok(Self(features.collect()))
    }

    /// The state of an offload. An offload that this kernel does not know counts as off and fixed.
    pub fn get(&self, name: &str) -> Feature {
        self.0.get(name).copied().unwrap_or(Feature { on: false, fixed: true, wanted: false })
    }

    /// True when it is on.
    pub fn on(&self, name: &str) -> bool {
        self.get(name).on
    }

    /// True when an administrator switched it off and can switch it on again.
    pub fn switched_off(&self, name: &str) -> bool {
        let feature = self.get(name);
        !feature.on && !feature.fixed && !feature.wanted
    }
}

/// The facts of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NicFacts {
    /// Its name.
    pub name: String,
    /// The kind of a software device (`veth`, `bridge` ...); `None` for hardware.
    pub kind: Option<String>,
    /// Its driver.
    pub driver: DriverInfo,
    /// Link speed in Mbit/s; `None` when the device has no speed or no carrier.
    pub speed_mbps: Option<u32>,
    /// The MTU, in bytes of IP packet.
    pub mtu: u32,
    /// The largest MTU that it accepts; 0 when unknown.
    pub max_mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// It has a carrier.
    pub carrier: bool,
    /// Its offloads.
    pub features: Features,
    /// Its queues, as the driver reports them.
    pub channels: Option<Channels>,
    /// Its receive queues, as the kernel counts them.
    pub rx_queues: u32,
    /// Its ring sizes.
    pub rings: Option<Rings>,
    /// Its tables of UDP tunnel ports; `None` when it has none.
    pub tunnel_tables: Option<Vec<TunnelTable>>,
    /// Receive-side scaling; `None` without it.
    pub rss: Option<Rss>,
    /// RPS, RFS and XPS; `None` when they could not be read.
    pub steering: Option<Steering>,
    /// Its XDP features; `None` when the kernel does not report them.
    pub xdp: Option<XdpFeatures>,
    /// How an XDP program is attached to it; `None` without a program.
    pub xdp_program: Option<XdpMode>,
    /// It is a port of a bond or team.
    pub is_bonded: bool,
    /// GRO of this kernel does not merge segments behind in-band VLAN tags.
    pub tags_stop_gro: bool,
    /// Facts that could not be read: the ethtool option that shows the fact, and the error.
    pub unread: Vec<(&'static str, String)>,
}

/// Returns the value that was read. On an error, returns the default and adds an entry to `unread`.
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
    /// Reads the facts of the device `name` in the calling thread's namespace. Without
    /// CAP_SYS_ADMIN, `steering` is `None` outside of the initial namespace.
    ///
    /// # Errors
    /// As [`NicFacts::read_offloads`].
    pub fn read(name: &str) -> Result<Self> {
        let facts = Self::read_offloads(name)?;
        let steering = Netlink::open()?.link(name).and_then(|link| Steering::read(&link));
        let tags_stop_gro = super::kernel::tags_stop_gro();
        Ok(Self { steering: steering.ok(), tags_stop_gro, ..facts })
    }

    /// As [`NicFacts::read`], but without `steering` and `tags_stop_gro`. Needs no privilege, and
    /// does not read the kernel's type information, which takes several milliseconds.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when there is no such device; other errors when neither netlink nor
    /// ethtool replies. Single values that cannot be read are listed in `unread`.
    pub fn read_offloads(name: &str) -> Result<Self> {
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
            xdp_program: link.xdp,
            is_bonded: link
                .master
                .and_then(|master| netlink.link_by_index(master).ok())
                .is_some_and(is_bond),
            ..Self::default()
        };
        // Kernels before 5.6 lack ethtool over netlink: the values below stay unknown.
        if let Ok(hardware) = Hardware::open() {
            facts.speed_mbps = note(&mut unread, "", hardware.speed_mbps(link.index));
            facts.channels = note(&mut unread, "-l", hardware.channels(link.index));
            facts.rings = note(&mut unread, "-g", hardware.rings(link.index));
            facts.tunnel_tables =
                note(&mut unread, "--show-tunnels", hardware.tunnel_tables(link.index));
            facts.xdp = note(&mut unread, "-i", hardware.xdp(link.index));
            facts.rss = note(&mut unread, "-x", hardware.rss(link.index, name));
        }
        Ok(Self { unread, ..facts })
    }

    /// True for a software device such as a veth, bridge or TAP.
    pub fn is_virtual(&self) -> bool {
        self.kind.is_some()
    }

    /// The number of receive queues in use.
    pub fn active_rx_queues(&self) -> usize {
        let by_rss = self.rss.as_ref().map(Rss::queues);
        let by_driver = self.channels.map(|channels| channels.rx as usize).filter(|&n| n > 0);
        by_rss.or(by_driver).unwrap_or(self.rx_queues as usize)
    }

    /// The number of CPUs that RPS distributes packets to, over all queues.
    pub fn rps_cpus(&self) -> usize {
        let queues = self.steering.iter().flat_map(|steering| &steering.rx);
        let mut cpus: Vec<usize> = queues.flat_map(|queue| queue.rps_cpus.iter()).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus.len()
    }
}
