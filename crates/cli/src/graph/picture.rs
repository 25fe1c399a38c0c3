//! [`Picture`]: the drawing of a topology, independent of the output format: boxes with rows in
//! four columns, and the lines between them.

use super::topology::{PortNode, SwitchNode, Topology};
use crate::control::replies::TunnelsReply;
use crate::units::scaled_count;
use datapath::stats::{Drops, PacketCount, PortStats, Snapshot};
use std::collections::{BTreeMap, HashMap};

/// The maximum number of guest ports that are drawn one by one. Above it, all ports of a switch on
/// one host are drawn as one row.
const MAX_PORT_ROWS: usize = 300;
/// The number of drop reasons that are shown for a port. The counts of further reasons are summed.
const MAX_REASONS: usize = 2;

/// Boxes and lines.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Picture {
    pub title: String,
    pub boxes: Vec<PictureBox>,
    pub lines: Vec<Line>,
    /// True if it shows the state of a running switch.
    pub is_live: bool,
}

/// The kind of a box. It determines the column and the colour.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    Balancer,
    Router,
    Switch,
    Host,
    Tunnel,
}

impl Kind {
    /// Its column, from the left.
    pub const fn column(self) -> usize {
        match self {
            Self::Balancer | Self::Router => 0,
            Self::Switch => 1,
            Self::Host => 2,
            Self::Tunnel => 3,
        }
    }

    /// The number of columns.
    pub const COLUMNS: usize = 4;

    /// The name of the class in the style sheet.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Balancer => "balancer",
            Self::Router => "router",
            Self::Switch => "switch",
            Self::Host => "host",
            Self::Tunnel => "tunnel",
        }
    }
}

/// A box: a heading and rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PictureBox {
    pub kind: Kind,
    pub title: String,
    /// The text below the title; may be empty.
    pub subtitle: String,
    pub rows: Vec<Row>,
}

/// A row of a box.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// The texts of the cells.
    pub cells: Vec<String>,
    /// The text of the tooltip: all facts about the row, one a line.
    pub tip: String,
    pub state: State,
}

/// The state of the port, device or tunnel that a row or line represents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// Not known, because the picture shows a network file or a port of another host.
    #[default]
    Unknown,
    Up,
    Down,
    /// Up, with dropped packets.
    Drops,
}

impl State {
    /// The name of the class in the style sheet.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Down => "down",
            Self::Drops => "drops",
        }
    }
}

/// An end of a line: a row of a box, or its heading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    pub index: usize,
    pub row: Option<usize>,
}

/// A line between two boxes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    pub from: End,
    pub to: End,
    pub state: State,
}

/// The state of a running switch, for the ports of its host.
pub struct Live<'a> {
    pub snapshot: &'a Snapshot,
    pub tunnels: &'a TunnelsReply,
    /// The counters are increments over this many seconds; `None` for counters since the start.
    pub interval_s: Option<f64>,
}

impl Live<'_> {
    fn traffic(&self, name: &str, count: PacketCount) -> String {
        let PacketCount { packets, bytes } = count;
        match self.interval_s {
            None => format!("{name} {} packets", scaled_count(packets)),
            Some(seconds) => {
                let rate = |count: u64| crate::units::scaled(count as f64 / seconds);
                let bits = bytes.saturating_mul(8);
                format!("{name} {}pps {}bit/s", rate(packets), rate(bits))
            }
        }
    }
}

impl Picture {
    /// Draws a topology. With `brief`, the ports of a switch on one host are one row.
    pub fn new(title: String, topology: &Topology, brief: bool, live: Option<&Live<'_>>) -> Self {
        let brief = brief || topology.port_count() > MAX_PORT_ROWS;
        let picture = Self { title, is_live: live.is_some(), ..Self::default() };
        let mut painter = Painter {
            picture,
            live,
            stats: live
                .map(|live| live.snapshot.ports.iter().map(|it| (it.name.as_str(), it)).collect())
                .unwrap_or_default(),
            hosts: BTreeMap::new(),
            switches: BTreeMap::new(),
            routers: BTreeMap::new(),
        };
        painter.hosts(topology);
        for switch in &topology.switches {
            painter.switch(switch, brief);
        }
        painter.patches(topology);
        painter.routers(topology);
        painter.balancers(topology);
        painter.tunnels(topology);
        painter.picture
    }
}

/// Adds boxes and lines to a picture.
struct Painter<'a> {
    picture: Picture,
    live: Option<&'a Live<'a>>,
    /// Counters of the ports by name.
    stats: HashMap<&'a str, &'a PortStats>,
    /// The boxes of hosts and switches, by name.
    hosts: BTreeMap<String, usize>,
    switches: BTreeMap<String, usize>,
    routers: BTreeMap<String, usize>,
}

/// The ports that one row represents.
struct PortGroup<'a> {
    /// The heading of the row.
    name: String,
    /// The text in the box of the host, if the row represents several ports.
    device: Option<String>,
    ports: Vec<&'a PortNode>,
}

impl Painter<'_> {
    fn add(&mut self, kind: Kind, title: &str, subtitle: String) -> usize {
        let title = title.to_owned();
        self.picture.boxes.push(PictureBox { kind, title, subtitle, rows: Vec::new() });
        self.picture.boxes.len() - 1
    }

    fn row(&mut self, index: usize, row: Row) -> End {
        let rows = &mut self.picture.boxes[index].rows;
        rows.push(row);
        End { index, row: Some(rows.len() - 1) }
    }

    fn line(&mut self, from: End, to: End, state: State) {
        self.picture.lines.push(Line { from, to, state });
    }

    fn hosts(&mut self, topology: &Topology) {
        let local = self.live.map(|live| live.snapshot.host.as_str());
        for host in &topology.hosts {
            let is_local = local == Some(host.name.as_str());
            let subtitle = match self.live {
                Some(live) if is_local => format!("this host, {} datapath", live.snapshot.datapath),
                _ => "host".to_owned(),
            };
            let index = self.add(Kind::Host, &host.name, subtitle);
            self.hosts.insert(host.name.clone(), index);
            let underlay: Vec<_> = host.underlay.iter().map(ToString::to_string).collect();
            let mut cells = vec![format!("uplink {}", host.uplink).trim_end().to_owned()];
            cells.extend((!underlay.is_empty()).then(|| underlay.join(", ")));
            let mut row = Row { tip: cells.join("\n"), cells, state: State::Unknown };
            if let Some(live) = self.live.filter(|_| is_local) {
                let uplink = &live.snapshot.uplink;
                row.state = state_of(&uplink.state, &uplink.drops);
                if uplink.state != "up" {
                    row.cells.push(short_state(&uplink.state));
                }
                row.cells.extend(drops_text(&uplink.drops, MAX_REASONS));
                row.tip.push_str(&format!("\n{}{}", uplink.state, all_drops(&uplink.drops)));
            }
            self.row(index, row);
        }
    }

    fn switch(&mut self, switch: &SwitchNode, brief: bool) {
        let mut facts: Vec<String> = Vec::new();
        facts.push(switch.kind.clone());
        let wire = format!("{} {}", switch.tunnel, switch.segment);
        facts.extend(Some(wire.trim().to_owned()).filter(|text| !text.is_empty()));
        facts.extend((switch.mtu != 0).then(|| format!("MTU {}", switch.mtu)));
        let index = self.add(Kind::Switch, &switch.name, facts.join(", "));
        self.switches.insert(switch.name.clone(), index);
        for group in groups(switch, brief) {
            self.port(index, &switch.name, &group);
        }
    }

    /// Adds a row to the box of the switch, a row to the box of the host, and a line between them.
    fn port(&mut self, switch: usize, switch_name: &str, group: &PortGroup<'_>) {
        let mut row = Row { cells: vec![group.name.clone()], ..Row::default() };
        let host = group.ports.first().and_then(|port| port.host.clone());
        if let [port] = group.ports[..] {
            row.cells.extend(Some(short_list(&port.addresses)).filter(|text| !text.is_empty()));
            row.cells.extend(host.as_ref().map(|host| format!("on {host}")));
            row.tip = port_tip(port, switch_name);
        } else {
            row.tip = format!("{}\nswitch {switch_name}", group.name);
        }
        let mut device = Row {
            cells: vec![group.device.clone().unwrap_or_else(|| group.name.clone())],
            ..Row::default()
        };
        if group.device.is_none() {
            device.cells.extend(group.ports.first().and_then(|port| port.device.clone()));
        }
        let stats: Vec<&PortStats> =
            group.ports.iter().filter_map(|port| self.stats.get(&*port.name).copied()).collect();
        if let (Some(live), false) = (self.live, stats.is_empty()) {
            add_live(&mut device, live, &stats);
        }
        device.tip = if device.tip.is_empty() {
            row.tip.clone()
        } else {
            format!("{}\n{}", row.tip, device.tip)
        };
        row.state = device.state;
        row.tip.clone_from(&device.tip);
        let from = self.row(switch, row);
        let Some(&at) = host.and_then(|name| self.hosts.get(&name)) else { return };
        let state = device.state;
        let to = self.row(at, device);
        self.line(from, to, state);
    }

    fn patches(&mut self, topology: &Topology) {
        for switch in &topology.switches {
            for patch in &switch.patches {
                let Some(&from) = self.switches.get(&switch.name) else { continue };
                let cells = vec![patch.port.clone(), format!("patch to {}", patch.switch)];
                let tip = cells.join("\n");
                let from = self.row(from, Row { cells, tip, state: State::Unknown });
                // The patch appears in both switches. Draws one line for it.
                let peer = self.switches.get(&patch.switch);
                if let Some(&index) = peer.filter(|_| switch.name < patch.switch) {
                    self.line(from, End { index, row: None }, State::Unknown);
                }
            }
        }
    }

    fn routers(&mut self, topology: &Topology) {
        let mut ends: BTreeMap<(&str, &str), End> = BTreeMap::new();
        let mut links = Vec::new();
        for router in &topology.routers {
            let count = |number: usize, one: &str, many: &str| match number {
                0 => None,
                1 => Some(format!("1 {one}")),
                number => Some(format!("{number} {many}")),
            };
            let facts = [
                Some(match &router.home {
                    Some(home) => format!("router on {home}"),
                    None => "router".to_owned(),
                }),
                count(router.routes, "route", "routes"),
                count(router.nats, "NAT rule", "NAT rules"),
            ];
            let facts: Vec<_> = facts.into_iter().flatten().collect();
            let index = self.add(Kind::Router, &router.name, facts.join(", "));
            self.routers.insert(router.name.clone(), index);
            for port in &router.ports {
                let mut cells = vec![port.name.clone()];
                cells.extend(
                    Some(short_list(&port.addresses)).filter(|addresses| !addresses.is_empty()),
                );
                let addresses = port.addresses.join("\n");
                let tip = format!("{}\n{addresses}\nto {}", port.name, port.peer);
                let from = self.row(index, Row { cells, tip, state: State::Unknown });
                ends.insert((&router.name, &port.name), from);
                if port.peer_port.is_empty() {
                    if let Some(&switch) = self.switches.get(&port.peer) {
                        self.line(from, End { index: switch, row: None }, State::Unknown);
                    }
                } else {
                    links.push((from, (port.peer.as_str(), port.peer_port.as_str())));
                }
            }
        }
        for (from, peer) in links {
            // The link appears in both routers. Draws one line for it.
            if let Some(&to) = ends.get(&peer).filter(|to| from.index < to.index) {
                self.line(from, to, State::Unknown);
            }
        }
    }

    fn balancers(&mut self, topology: &Topology) {
        for balancer in &topology.load_balancers {
            let subtitle = format!("load balancer, {}", balancer.vip);
            let index = self.add(Kind::Balancer, &balancer.name, subtitle);
            for backend in &balancer.backends {
                let cells = vec![format!("backend {backend}")];
                self.row(index, Row { tip: cells.join("\n"), cells, state: State::Unknown });
            }
            let switches = balancer.switches.iter().filter_map(|name| self.switches.get(name));
            let routers = balancer.routers.iter().filter_map(|name| self.routers.get(name));
            let ends: Vec<usize> = switches.chain(routers).copied().collect();
            for to in ends {
                let (from, to) = (End { index, row: None }, End { index: to, row: None });
                self.line(from, to, State::Unknown);
            }
        }
    }

    fn tunnels(&mut self, topology: &Topology) {
        let local = self.live.map(|live| live.snapshot.host.clone());
        for tunnel in &topology.tunnels {
            let index = self.add(Kind::Tunnel, &tunnel.name, format!("tunnel, {}", tunnel.carrier));
            let mut drawn: Vec<String> = Vec::new();
            let endpoints = self.live.map(|live| live.tunnels.endpoints.as_slice());
            for end in endpoints.unwrap_or_default() {
                let (Some(live), stats) = (self.live, &end.stats) else { continue };
                if stats.tunnel != tunnel.name {
                    continue;
                }
                let name = end.host.clone().unwrap_or_else(|| stats.remote.to_string());
                let is_down = stats.neighbour == "unresolved";
                let state = if is_down { State::Down } else { State::Up };
                let mut cells = vec![format!("to {name}"), stats.remote.to_string()];
                cells.push(format!("path MTU {}", stats.path_mtu));
                cells.push(live.traffic("rx", stats.rx));
                cells.push(live.traffic("tx", stats.tx));
                cells.extend(is_down.then(|| "neighbour unresolved".to_owned()));
                let tip = format!(
                    "{} {} to {}\nneighbour {}\nrx {} frames, {} bytes\ntx {} frames, {} bytes",
                    stats.tunnel,
                    stats.local,
                    stats.remote,
                    stats.neighbour,
                    stats.rx.packets,
                    stats.rx.bytes,
                    stats.tx.packets,
                    stats.tx.bytes
                );
                let to = self.row(index, Row { cells, tip, state });
                if let Some(&host) = self.hosts.get(&name) {
                    self.line(End { index: host, row: Some(0) }, to, state);
                }
                drawn.push(name);
            }
            for host in tunnel.hosts.iter().filter(|host| !drawn.contains(host)) {
                let Some(&host_index) = self.hosts.get(host) else { continue };
                // A daemon knows only its own end points.
                if local.as_ref().is_some_and(|local| local != host) && !drawn.is_empty() {
                    continue;
                }
                let (from, to) =
                    (End { index: host_index, row: Some(0) }, End { index, row: None });
                self.line(from, to, State::Unknown);
            }
        }
    }
}

/// The rows of a switch, in the order of its ports. Free ports of a pool on one host are one row.
fn groups(switch: &SwitchNode, brief: bool) -> Vec<PortGroup<'_>> {
    let mut groups: Vec<PortGroup<'_>> = Vec::new();
    let mut places: HashMap<(Option<&str>, Option<&str>), usize> = HashMap::new();
    for port in &switch.ports {
        let free = port.pool.as_deref().filter(|_| port.device.is_none());
        let host = port.host.as_deref();
        if !brief && free.is_none() {
            groups.push(PortGroup { name: port.name.clone(), device: None, ports: vec![port] });
            continue;
        }
        let place = *places.entry((free, host)).or_insert_with(|| {
            groups.push(PortGroup { name: String::new(), device: None, ports: Vec::new() });
            groups.len() - 1
        });
        groups[place].ports.push(port);
        let count = groups[place].ports.len();
        let plural = if count == 1 { "" } else { "s" };
        let at = host.unwrap_or("no host");
        (groups[place].name, groups[place].device) = match free {
            Some(pool) => (
                format!("{count} free port{plural} of {pool} on {at}"),
                Some(format!("{count} free port{plural} of {pool}")),
            ),
            None => (
                format!("{count} port{plural} on {at}"),
                Some(format!("{count} port{plural} of {}", switch.name)),
            ),
        };
    }
    groups
}

/// Adds the state and counters of one or more ports to a row.
fn add_live(row: &mut Row, live: &Live<'_>, stats: &[&PortStats]) {
    let (mut rx, mut tx, mut drops) =
        (PacketCount::default(), PacketCount::default(), Drops::new());
    for port in stats {
        rx += port.rx;
        tx += port.tx;
        for (reason, count) in &port.drops {
            *drops.entry(reason.clone()).or_default() += count;
        }
    }
    let down: Vec<_> = stats.iter().filter(|port| port.state != "up").collect();
    let state = down.first().map_or("up", |port| port.state.as_str());
    row.state = state_of(state, &drops);
    row.cells.push(match (down.len(), stats) {
        (0, _) => "up".to_owned(),
        (_, [_]) => short_state(state),
        (down, _) => format!("{down} of {} down", stats.len()),
    });
    row.cells.push(live.traffic("rx", rx));
    row.cells.push(live.traffic("tx", tx));
    row.cells.extend(drops_text(&drops, MAX_REASONS));
    row.tip = format!(
        "{state}\nrx {} frames, {} bytes\ntx {} frames, {} bytes{}",
        rx.packets,
        rx.bytes,
        tx.packets,
        tx.bytes,
        all_drops(&drops)
    );
}

/// A state without its reason. The tooltip shows the reason.
fn short_state(state: &str) -> String {
    state.split(':').next().unwrap_or_default().to_owned()
}

fn state_of(state: &str, drops: &Drops) -> State {
    match state {
        "up" if drops.values().all(|&count| count == 0) => State::Up,
        "up" => State::Drops,
        _ => State::Down,
    }
}

/// `drops 12 acl_drop, 3 others`; the reasons with most drops first.
fn drops_text(drops: &Drops, most: usize) -> Option<String> {
    let mut reasons: Vec<_> = drops.iter().filter(|(_, count)| **count != 0).collect();
    reasons.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(**count));
    let text = |(reason, count): &(&String, &u64)| format!("{} {reason}", scaled_count(**count));
    let mut parts: Vec<_> = reasons.iter().take(most).map(text).collect();
    let rest: u64 = reasons.iter().skip(most).map(|(_, count)| **count).sum();
    parts.extend((rest != 0).then(|| format!("{} others", scaled_count(rest))));
    (!parts.is_empty()).then(|| format!("drops {}", parts.join(", ")))
}

/// A line for each reason.
fn all_drops(drops: &Drops) -> String {
    drops.iter().map(|(reason, count)| format!("\ndrops {reason} {count}")).collect()
}

fn port_tip(port: &PortNode, switch: &str) -> String {
    let mut tip = format!("port {}\nswitch {switch}", port.name);
    let facts = [
        (!port.mac.is_empty()).then(|| format!("MAC {}", port.mac)),
        (!port.addresses.is_empty()).then(|| port.addresses.join("\n")),
        port.host.as_ref().map(|host| format!("host {host}")),
        port.device.clone(),
        port.pool.as_ref().map(|pool| format!("pool {pool}")),
    ];
    for fact in facts.into_iter().flatten() {
        tip.push('\n');
        tip.push_str(&fact);
    }
    tip
}

/// The first two values, and how many more there are.
fn short_list(values: &[String]) -> String {
    const MOST: usize = 2;
    let shown = values.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    match values.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} +{more}"),
    }
}
