//! The lab of the end-to-end tests: two hosts, which are network namespaces connected by a veth
//! pair, and guests, each in a separate namespace. A [`Setup`] describes the lab, and the network
//! file is written from it. [`daemon`] runs weft, and [`traffic`] sends packets between guests.
//!
//! Dropping the [`Lab`] removes everything, even if a test fails.

pub mod daemon;
pub mod frames;
pub mod outer;
pub mod traffic;
pub mod trunk;

pub use daemon::Daemon;

use netdev::{Dad, IpNet, LinkKind, LinkSpec};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testkit::host::{TestHost, WireEnd, pair, wait_until};
use wire::MacAddr;

/// The names of all tunnel types in network files.
pub const TUNNELS: [&str; 7] = ["vxlan", "geneve", "gre", "nvgre", "stt", "vlan", "qinq"];

/// Timeout for events that happen at once on an idle machine; on a busy one they may take long.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The VNI, GRE key or STT datapath of the logical switch `blue`.
pub const VNI: u32 = 5001;
/// The VLAN of the logical switch for type `vlan`, and its outer VLAN for `qinq`.
pub const VLAN: u16 = 100;
/// The inner VLAN of the logical switch for type `qinq`.
pub const INNER_VLAN: u16 = 200;
/// The name of a guest's interface in its namespace.
pub const GUEST_DEVICE: &str = "eth0";

/// How a guest is attached to its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attachment {
    /// A TAP device that weft creates in the namespace of the guest.
    Tap,
    /// An existing veth pair, whose host end weft opens.
    Veth,
}

/// A value of `weft run --datapath`. Without the option, weft uses the kernel datapath if the host
/// supports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Datapath {
    /// The user datapath alone, in threads of the daemon.
    User,
    /// eBPF programs, and the user datapath for packets that the programs cannot process.
    Kernel,
}

impl Datapath {
    /// Both datapaths, for tests that run with each.
    pub const BOTH: [Self; 2] = [Self::User, Self::Kernel];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
        }
    }

    /// The datapath that `WEFT_TEST_DATAPATH` selects for tests that do not choose one.
    pub fn from_environment() -> Option<Self> {
        let name = std::env::var("WEFT_TEST_DATAPATH").ok()?;
        let named = Self::BOTH.into_iter().find(|datapath| datapath.name() == name);
        Some(named.expect("WEFT_TEST_DATAPATH is user or kernel"))
    }
}

/// The description of a [`Lab`]: one logical switch `blue` on the hosts `h1` and `h2`.
#[derive(Clone, Debug)]
pub struct Setup {
    tunnel: String,
    family: u8,
    options: String,
    underlay_mtu: Option<u16>,
    mtu: Option<u16>,
    guests: [usize; 2],
    attachment: Attachment,
    vms: usize,
    queues: u16,
    keyed: bool,
    secured: bool,
    trusted: Vec<(usize, String)>,
    more: String,
    datapath: Option<Datapath>,
}

impl Setup {
    /// One guest on each host, an IPv4 underlay, and all options at their defaults.
    pub fn new(tunnel: &str) -> Self {
        Self {
            tunnel: tunnel.to_owned(),
            family: 4,
            options: String::new(),
            underlay_mtu: None,
            mtu: None,
            guests: [1, 1],
            attachment: Attachment::Tap,
            vms: 0,
            queues: 1,
            keyed: true,
            secured: false,
            trusted: Vec::new(),
            more: String::new(),
            datapath: Datapath::from_environment(),
        }
    }

    /// Runs this datapath on both hosts.
    pub fn datapath(self, datapath: Datapath) -> Self {
        Self { datapath: Some(datapath), ..self }
    }

    /// Sets the IP version of the outer header, 4 or 6.
    pub fn family(self, family: u8) -> Self {
        Self { family, ..self }
    }

    /// Adds these lines to `[tunnel_options.TUNNEL]`.
    pub fn options(self, lines: &str) -> Self {
        Self { options: lines.to_owned(), ..self }
    }

    /// Sets the MTU of the uplinks, in bytes, in the file and on the devices.
    pub fn underlay_mtu(self, bytes: u16) -> Self {
        Self { underlay_mtu: Some(bytes), ..self }
    }

    /// Sets the MTU of the guests, in bytes.
    pub fn mtu(self, bytes: u16) -> Self {
        Self { mtu: Some(bytes), ..self }
    }

    /// Sets the numbers of guests on `h1` and on `h2`.
    pub fn guests(self, first: usize, second: usize) -> Self {
        Self { guests: [first, second], ..self }
    }

    /// Sets how guests are attached.
    pub fn attachment(self, attachment: Attachment) -> Self {
        Self { attachment, ..self }
    }

    /// Makes the first `count` guests virtual machines, which the test starts on the TAP
    /// [`Guest::host_device`].
    pub fn vms(self, count: usize) -> Self {
        Self { vms: count, ..self }
    }

    /// Sets the number of queues that a virtual machine may open.
    pub fn queues(self, count: u16) -> Self {
        Self { queues: count, ..self }
    }

    /// Omits the `vni` of the logical switch, for GRE without a key.
    pub fn without_key(self) -> Self {
        Self { keyed: false, ..self }
    }

    /// Gives all guests port security.
    pub fn secured(self) -> Self {
        Self { secured: true, ..self }
    }

    /// Trusts a guest, counted from 1, for these protocols. `protocols` contains the elements of
    /// the key `trusted`.
    pub fn trusted(mut self, guest: usize, protocols: &str) -> Self {
        self.trusted.push((guest, protocols.to_owned()));
        self
    }

    /// The tunnel type.
    pub fn tunnel(&self) -> &str {
        &self.tunnel
    }

    /// Appends this TOML to the network file.
    pub fn more(self, text: &str) -> Self {
        Self { more: text.to_owned(), ..self }
    }
}

/// One host.
pub struct Host {
    /// `h1` or `h2`, as in the network file.
    pub name: &'static str,
    /// Its namespace.
    pub netns: TestHost,
    /// Its end of the veth pair between the hosts.
    pub uplink: WireEnd,
}

impl Host {
    /// Its underlay address; `family` is the IP version.
    pub fn underlay(&self, family: u8) -> IpAddr {
        if family == 4 { self.uplink.ip4.into() } else { self.uplink.ip6.into() }
    }
}

/// One guest.
pub struct Guest {
    /// `g1`, `g2` and so on in the order of the network file, in which the guests of `h1` come
    /// first.
    pub name: String,
    /// The index of its host in [`Lab::hosts`].
    pub host: usize,
    /// The number of its logical port.
    pub port_key: u16,
    /// Its namespace; the interface in it is [`GUEST_DEVICE`].
    pub netns: TestHost,
    /// Its MAC address, 02:00:00:00:00:NN.
    pub mac: MacAddr,
    /// 192.168.7.N
    pub ip4: Ipv4Addr,
    /// fd77::N
    pub ip6: Ipv6Addr,
}

impl Guest {
    /// A guest whose addresses end in `number`. It is not in the network file yet.
    pub fn new(number: u8, host: usize) -> Self {
        let name = format!("g{number}");
        let netns = TestHost::new(&name);
        // Allows this process to open ping sockets in the namespace.
        netns.sysctl("net/ipv4/ping_group_range", "0 2147483647").expect("a sysctl can be set");
        Self {
            name,
            host,
            port_key: number.into(),
            netns,
            mac: MacAddr([2, 0, 0, 0, 0, number]),
            ip4: Ipv4Addr::new(192, 168, 7, number),
            ip6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into()),
        }
    }

    /// Its IP address; `family` is the IP version.
    pub fn ip(&self, family: u8) -> IpAddr {
        if family == 4 { self.ip4.into() } else { self.ip6.into() }
    }

    /// The host end of its veth pair, or the TAP device of a virtual machine.
    pub fn host_device(&self) -> String {
        format!("vif-{}", self.name)
    }

    /// Creates the veth pair that connects it to `host` and assigns its addresses.
    pub fn attach(&self, host: &Host, mtu: u16) {
        self.join(&host.netns, &self.host_device(), mtu);
    }

    /// Creates the veth pair of the guest, whose other end is in `netns` and named `device`, and
    /// assigns the guest's addresses.
    fn join(&self, netns: &TestHost, device: &str, mtu: u16) {
        let peer = LinkSpec::new(device).mtu(mtu.into()).netns(netns).up();
        let spec = LinkSpec::new(GUEST_DEVICE).mac(self.mac).mtu(mtu.into()).up();
        let netlink = self.netns.netlink();
        let index = netlink.create(&spec, &LinkKind::Veth { peer }).expect("a veth can be made");
        for (address, len) in [(self.ip(4), 24), (self.ip(6), 64)] {
            let prefix = IpNet::new(address, len).expect("the length fits the family");
            netlink.add_address(index, prefix, Dad::Skip).expect("an address can be added");
        }
    }
}

/// Two hosts, their guests and the network file; no daemon runs yet.
pub struct Lab {
    /// The description that it was built from.
    pub setup: Setup,
    /// `h1` and `h2`.
    pub hosts: [Host; 2],
    /// All guests, those of `h1` first.
    pub guests: Vec<Guest>,
    /// The directory of the network file and the control sockets.
    pub dir: TempDir,
}

impl Lab {
    /// Builds the lab.
    pub fn new(setup: Setup) -> Self {
        let (a, b) = (TestHost::new("h1"), TestHost::new("h2"));
        let (end_a, end_b) = pair(&a, &b);
        let hosts = [
            Host { name: "h1", netns: a, uplink: end_a },
            Host { name: "h2", netns: b, uplink: end_b },
        ];
        if let Some(mtu) = setup.underlay_mtu {
            for host in &hosts {
                let index = host.uplink.index;
                host.netns.netlink().set_mtu(index, mtu.into()).expect("an MTU can be set");
            }
        }
        let places = [vec![0; setup.guests[0]], vec![1; setup.guests[1]]].concat();
        let guests: Vec<_> =
            (1..).zip(places).map(|(number, host)| Guest::new(number, host)).collect();
        let lab = Self { setup, hosts, guests, dir: TempDir::new() };
        if lab.setup.attachment == Attachment::Veth {
            let mtu = lab.setup.mtu.expect("a guest that weft does not configure needs an MTU");
            lab.guests.iter().for_each(|guest| guest.attach(&lab.hosts[guest.host], mtu));
        }
        lab.write_network();
        lab
    }

    fn write_network(&self) {
        std::fs::write(self.network_file(), self.network_toml()).expect("a file can be written");
    }

    /// Changes the setup and writes its network file. Daemons that are started later read it.
    pub fn change_setup(&mut self, change: impl FnOnce(Setup) -> Setup) {
        self.setup = change(self.setup.clone());
        self.write_network();
    }

    /// Changes the tunnel type and writes the network file. Daemons that are started later read it.
    pub fn change_tunnel(&mut self, tunnel: &str) {
        self.setup.tunnel = tunnel.to_owned();
        self.write_network();
    }

    /// The IP version of the outer header.
    pub fn family(&self) -> u8 {
        self.setup.family
    }

    /// Path of the network file.
    pub fn network_file(&self) -> PathBuf {
        self.dir.path().join("network.toml")
    }

    /// The control socket of the daemon of `host`.
    pub fn control(&self, host: usize) -> PathBuf {
        self.dir.path().join(format!("{}.sock", self.hosts[host].name))
    }

    /// The guests of one host.
    pub fn guests_of(&self, host: usize) -> impl Iterator<Item = &Guest> {
        self.guests.iter().filter(move |guest| guest.host == host)
    }

    /// Creates the veth pair between the hosts again, with the old names and addresses.
    pub fn join_again(&mut self) {
        self.join_without_addresses();
        self.add_addresses();
    }

    /// Creates the veth pair between the hosts again, with the old names and without addresses.
    pub fn join_without_addresses(&mut self) {
        let [a, b] = &self.hosts;
        let peer = LinkSpec::new(&b.uplink.name).netns(&b.netns).up();
        let netlink = a.netns.netlink();
        netlink
            .create(&LinkSpec::new(&a.uplink.name).up(), &LinkKind::Veth { peer })
            .expect("a veth can be made");
        for host in &mut self.hosts {
            let link = host.netns.netlink().link(&host.uplink.name).expect("a new link is there");
            (host.uplink.index, host.uplink.mac) = (link.index, link.mac);
        }
    }

    /// Gives the uplinks their addresses.
    pub fn add_addresses(&self) {
        for host in &self.hosts {
            for (address, len) in [(host.underlay(4), 24), (host.underlay(6), 64)] {
                let prefix = IpNet::new(address, len).expect("the length fits the family");
                let netlink = host.netns.netlink();
                netlink
                    .add_address(host.uplink.index, prefix, Dad::Skip)
                    .expect("an address can be added");
            }
        }
    }

    /// The first guest of each host.
    pub fn ends(&self) -> (&Guest, &Guest) {
        let first = |host| self.guests_of(host).next().expect("each host has a guest");
        (first(0), first(1))
    }

    /// Starts the daemon of one host and waits until its ports are up.
    pub fn start(&self, host: usize) -> Daemon {
        let daemon = self.spawn(host);
        daemon.wait_ready();
        daemon
    }

    /// Starts the daemon of one host.
    pub fn spawn(&self, host: usize) -> Daemon {
        self.spawn_at(host, &self.control(host))
    }

    /// Starts the daemon of one host with this control socket.
    pub fn spawn_at(&self, host: usize, control: &Path) -> Daemon {
        Daemon::spawn(&self.hosts[host], &self.network_file(), control, &self.arguments())
    }

    /// Starts the daemon of one host with this standard error.
    pub fn spawn_with_stderr(&self, host: usize, stderr: Stdio) -> Daemon {
        let (file, control) = (self.network_file(), self.control(host));
        Daemon::spawn_with_stderr(&self.hosts[host], &file, &control, &self.arguments(), stderr)
    }

    /// Starts the daemon of one host with additional options, and waits until its ports are up.
    pub fn start_with(&self, host: usize, options: &[&str]) -> Daemon {
        let arguments = [&self.arguments(), options].concat();
        let (file, control) = (self.network_file(), self.control(host));
        let daemon = Daemon::spawn(&self.hosts[host], &file, &control, &arguments);
        daemon.wait_ready();
        daemon
    }

    /// The options of `weft run` that the setup requires.
    fn arguments(&self) -> Vec<&'static str> {
        let datapath = self.setup.datapath.map(|datapath| ["--datapath", datapath.name()]);
        datapath.into_iter().flatten().collect()
    }

    /// Starts both daemons and waits until ports and uplinks are up and end points are resolved.
    pub fn start_both(&self) -> [Daemon; 2] {
        let daemons = [0, 1].map(|host| self.spawn(host));
        daemons.iter().for_each(Daemon::wait_ready);
        for daemon in &daemons {
            // The kernel may take a while to report that a new uplink has a carrier.
            wait_until(PATIENCE, "the uplink is up and the end points are resolved", || {
                let shown = daemon.show();
                let mut endpoints = shown.endpoints.iter();
                shown.uplink.state == "up"
                    && endpoints.all(|endpoint| endpoint.neighbour != "unresolved")
            });
        }
        daemons
    }

    /// The text of the network file.
    fn network_toml(&self) -> String {
        let setup = &self.setup;
        let mut text = format!("tunnel = \"{}\"\n", setup.tunnel);
        let line = &mut |args: std::fmt::Arguments<'_>| {
            writeln!(text, "{args}").expect("writing to a String cannot fail");
        };
        line(format_args!("underlay_mtu = {}", setup.underlay_mtu.unwrap_or(1500)));
        line(format_args!("underlay_family = {}", setup.family));
        line(format_args!("[tunnel_options.{}]\n{}", setup.tunnel, setup.options));
        for host in &self.hosts {
            let WireEnd { name, ip4, ip6, .. } = &host.uplink;
            line(format_args!("[[host]]\nname = \"{}\"\nuplink = \"{name}\"", host.name));
            line(format_args!("underlay = [\"{ip4}\", \"{ip6}\"]"));
        }
        line(format_args!("[[logical_switch]]\nname = \"blue\""));
        match setup.tunnel.as_str() {
            "vlan" => line(format_args!("vlan = {VLAN}")),
            "qinq" => line(format_args!("vlan = {{ outer = {VLAN}, inner = {INNER_VLAN} }}")),
            _ if setup.keyed => line(format_args!("vni = {VNI}")),
            _ => {}
        }
        if let Some(mtu) = setup.mtu {
            line(format_args!("mtu = {mtu}"));
        }
        for (at, guest) in self.guests.iter().enumerate() {
            let Guest { name, mac, ip4, ip6, .. } = guest;
            let host = self.hosts[guest.host].name;
            line(format_args!("[[logical_switch.port]]\nname = \"{name}\"\nhost = \"{host}\""));
            line(format_args!("mac = \"{mac}\"\naddresses = [\"{ip4}/24\", \"{ip6}/64\"]"));
            if setup.secured {
                line(format_args!("port_security = true"));
            }
            for (_, protocols) in setup.trusted.iter().filter(|(number, _)| *number == at + 1) {
                line(format_args!("trusted = [{protocols}]"));
            }
            let netns = guest.netns.name().expect("the namespace of a guest has a name");
            match setup.attachment {
                _ if at < setup.vms => {
                    let (device, queues) = (guest.host_device(), setup.queues);
                    let queues =
                        if queues > 1 { format!(", queues = {queues}") } else { String::new() };
                    line(format_args!("device = {{ vm = \"{device}\"{queues} }}"));
                }
                Attachment::Tap => line(format_args!(
                    "device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}"
                )),
                Attachment::Veth => {
                    line(format_args!("device = {{ interface = \"{}\" }}", guest.host_device()));
                }
            }
        }
        line(format_args!("{}", setup.more));
        text
    }
}

/// A temporary directory, removed on drop.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates the directory under a unique name.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-test-{}-{unique}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Errors are ignored: the directory is only temporary.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
