//! Restores the connections that an earlier daemon saved. Zones and ports are matched by name,
//! because their numbers can change.

use super::attached;
use crate::control::default_path;
use anyhow::Context;
use datapath::config::{Config, MAX_PORT};
use datapath::saved_connections::{Area, ConnectionFile, Restored, SavedState};
use flow::PortNo;
use pipeline::{CtZones, Program, ZoneUser};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SUFFIX: &str = ".connections";

/// The file of saved connections that belongs to a control socket.
pub fn path(control: &Path) -> PathBuf {
    with_suffix(control, SUFFIX)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// The paths of control sockets in the default directory for which earlier daemons left files.
pub fn controls_with_files() -> BTreeSet<PathBuf> {
    let folder = default_path("");
    let entries = folder.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten();
    let names = entries.filter_map(|entry| entry.path().into_os_string().into_string().ok());
    let control = |name: &str| {
        [SUFFIX, attached::SUFFIX].iter().find_map(|it| name.strip_suffix(it).map(PathBuf::from))
    };
    names.filter_map(|name| control(&name)).collect()
}

/// Removes the saved connections that belong to a control socket.
pub fn remove_beside(control: &Path) {
    remove(&path(control));
}

/// Reads the file of an earlier daemon and gives zones their old numbers. Then writes the
/// connections of zones that still exist to a new file, which replaces the old one. If the file
/// cannot be written, this daemon works, but the next one will not know its connections.
pub fn restore(path: &Path, config: &Config, program: &mut Program) -> Restored {
    let earlier = match SavedState::read(path) {
        Ok(earlier) => earlier.unwrap_or_default(),
        Err(error) => {
            messages::log!(
                SAVED_CONNECTIONS_UNREADABLE,
                path = %path.display(),
                "cannot read saved connections: {error}"
            );
            if error.kind() == std::io::ErrorKind::WouldBlock {
                // Another running daemon uses the file.
                let nothing = std::iter::empty();
                return Restored::new(None, &config.conntrack, nothing, Duration::ZERO).0;
            }
            SavedState::default()
        }
    };
    let (last_heartbeat, downtime, unreadable) =
        (earlier.last_heartbeat, earlier.downtime(), earlier.unreadable);
    let zones = earlier.zones.iter().filter_map(|(zone, name)| Some((user_of(name)?, *zone)));
    let zones = CtZones::earlier(zones);
    program.allocate_zones(&zones);
    let freed: HashSet<u16> = zones.freed(program.zones()).into_iter().collect();
    let kept: HashSet<u16> =
        zones.iter().map(|(_, zone)| zone).filter(|zone| !freed.contains(zone)).collect();
    let opener = Openers::new(&earlier.ports, config);
    let saved = earlier.records.len();
    let records: Vec<_> = earlier
        .records
        .iter()
        .filter(|record| kept.contains(&record.zone().0))
        .map(|record| (*record, opener.now(record.opener())))
        .collect();
    let without_zone = saved - records.len();

    let new = with_suffix(path, ".new");
    remove(&new);
    let file = ConnectionFile::create(&new, config.conntrack.limits.connections, last_heartbeat);
    let file = file.with_context(|| format!("cannot create {}", new.display()));
    let file = file.inspect_err(log_not_saved).ok();
    if let Some(file) = &file {
        file.set_names(Area::Zones, zone_names(program));
        file.set_names(Area::Ports, port_names(config));
    }
    let is_saved = file.is_some();
    let (restored, lost) = Restored::new(file, &config.conntrack, records.into_iter(), downtime);
    let renamed = if is_saved { fs::rename(&new, path) } else { Ok(()) };
    let renamed = renamed.with_context(|| format!("cannot rename {}", new.display()));
    if !is_saved || renamed.inspect_err(log_not_saved).is_err() {
        // The next daemon must not mistake the old connections for those of this daemon.
        remove(&new);
        remove(path);
    }
    report(restored.len(), unreadable, without_zone, &lost);
    restored
}

fn log_not_saved(error: &anyhow::Error) {
    messages::log!(
        CONNECTIONS_NOT_SAVED,
        "the next daemon will not know the connections of this one: {error:#}"
    );
}

/// Maps the saved numbers of ports that opened connections to their present numbers.
struct Openers<'a> {
    names: &'a BTreeMap<u32, String>,
    numbers: HashMap<String, PortNo>,
}

impl<'a> Openers<'a> {
    /// `names` are the port names that the earlier daemon saved, by port number.
    fn new(names: &'a BTreeMap<u32, String>, config: &Config) -> Self {
        let numbers = config.ports.iter().map(|port| (port_name(port), port.port)).collect();
        Self { names, numbers }
    }

    /// The present number of the port that had the number `then`.
    fn now(&self, then: PortNo) -> PortNo {
        /// Stands for a port that no longer exists.
        const GONE: PortNo = PortNo(u32::MAX);
        match self.names.get(&then.0) {
            Some(name) => self.numbers.get(name).copied().unwrap_or(GONE),
            // The uplink or a tunnel, whose numbers are fixed.
            None if !(1..=MAX_PORT.0).contains(&then.0) => then,
            None => GONE,
        }
    }
}

/// Removes the file, if there is one.
pub fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            messages::log!(
                SAVED_CONNECTIONS_LEFT,
                path = %path.display(),
                "cannot remove saved connections: {error}"
            );
        }
        _ => {}
    }
}

fn report(
    restored: u32,
    unreadable: u64,
    without_zone: usize,
    lost: &BTreeMap<conntrack::RestoreError, u64>,
) {
    if restored > 0 {
        messages::log!(
            CONNECTIONS_RESTORED,
            "restored {restored} connections of the previous daemon"
        );
    }
    let unreadable = ("saved by another version, or half written".to_owned(), unreadable);
    let without_zone = ("their port or router is gone".to_owned(), without_zone as u64);
    let lost = lost.iter().map(|(why, count)| (why.to_string(), *count));
    for (why, count) in [unreadable, without_zone].into_iter().chain(lost) {
        if count > 0 {
            messages::log!(
                CONNECTIONS_LOST,
                "lost {count} connections of the previous daemon: {why}"
            );
        }
    }
}

/// Saves the names of the zones of a program, and of ports. Called before the program is published.
pub fn save_names(tracker: &datapath::tracker::Tracker, program: &Program, config: &Config) {
    tracker.save_names(zone_names(program), port_names(config));
}

fn zone_names(program: &Program) -> Vec<(u32, String)> {
    program.zones().iter().map(|(user, zone)| (zone.into(), name_of(user))).collect()
}

fn port_names(config: &Config) -> Vec<(u32, String)> {
    config.ports.iter().map(|port| (port.port.0, port_name(port))).collect()
}

/// The saved name of a port: the names of its switch and of the port.
fn port_name(port: &datapath::config::PortConfig) -> String {
    encode(&[&port.logical_switch, &port.name])
}

/// The types of zone users in saved names.
const PORT: &str = "port";
const DNAT: &str = "dnat";
const SNAT: &str = "snat";
const HAIRPIN: &str = "hairpin";
const BRIDGE: &str = "bridge";

fn name_of(user: &ZoneUser) -> String {
    match user {
        ZoneUser::Port { datapath, port } => encode(&[PORT, datapath, port]),
        ZoneUser::Dnat(router) => encode(&[DNAT, router]),
        ZoneUser::Snat(router) => encode(&[SNAT, router]),
        ZoneUser::Hairpin(switch) => encode(&[HAIRPIN, switch]),
        ZoneUser::Bridge { datapath, zone } => encode(&[BRIDGE, datapath, &zone.to_string()]),
    }
}

fn user_of(name: &str) -> Option<ZoneUser> {
    let parts: Vec<String> = serde_json::from_str(name).ok()?;
    let mut parts = parts.into_iter();
    let (kind, first, second) = (parts.next()?, parts.next()?, parts.next());
    Some(match (kind.as_str(), second) {
        (PORT, Some(port)) => ZoneUser::Port { datapath: first, port },
        (DNAT, None) => ZoneUser::Dnat(first),
        (SNAT, None) => ZoneUser::Snat(first),
        (BRIDGE, Some(zone)) => ZoneUser::Bridge { datapath: first, zone: zone.parse().ok()? },
        (HAIRPIN, None) => ZoneUser::Hairpin(first),
        _ => return None,
    })
}

/// Encodes parts of a name as JSON. Names may contain any character, so none can be a separator.
fn encode(parts: &[&str]) -> String {
    serde_json::to_string(parts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_config::{HostConfig, build};
    use crate::host_numbers::HostNumbers;
    use conntrack::{Commit, Headers, Nat, Seed, Table, Zone};
    use network::Network;
    use packet::PacketBuf;

    /// The configuration of a host with a switch that has these ports, and with a router `r`.
    fn host(ports: &[&str]) -> HostConfig {
        let mut text = "tunnel = \"vxlan\"\n[[host]]\nname = \"h1\"\nuplink = \"eth0\"\n\
                        underlay = []\n[[logical_switch]]\nname = \"blue\"\nvni = 5\n"
            .to_owned();
        for (name, mac) in ports.iter().zip(1..) {
            text += &format!(
                "[[logical_switch.port]]\nname = \"{name}\"\nhost = \"h1\"\n\
                 mac = \"02:00:00:00:00:{mac:02x}\"\ndevice = {{ tap = \"{name}\" }}\n"
            );
        }
        let network = Network::parse(&text, "n.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let (host, mut numbers) = (&network.hosts()[0], HostNumbers::default());
        build(&network, host, "n.toml", true, &mut numbers, |_| None).unwrap()
    }

    fn zone_of(program: &Program, name: &str) -> Zone {
        let port = ZoneUser::Port { datapath: "blue".to_owned(), port: name.to_owned() };
        Zone(program.zones().iter().find(|(user, _)| **user == port).expect("it has a zone").1)
    }

    fn number_of(config: &Config, name: &str) -> PortNo {
        config.ports.iter().find(|port| port.name == name).expect("there is this port").port
    }

    fn datagram(is_reply: bool) -> Headers {
        let [near, far] = [[10, 0, 0, 1], [10, 0, 0, 2]];
        let (ends, ports) = if is_reply { ([far, near], [2, 1]) } else { ([near, far], [1, 2]) };
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend(ends.concat());
        let sum = wire::checksum::checksum(&frame[14..34]).to_be_bytes();
        frame[24..26].copy_from_slice(&sum);
        frame.extend([0, ports[0], 0, ports[1], 0, 8, 0, 0]);
        Headers::parse(&PacketBuf::from_bytes(&frame)).unwrap()
    }

    /// Waits until the file is not locked. A process forked by another test can inherit the lock.
    fn settle(path: &Path) {
        let is_free = || SavedState::read(path).is_ok();
        testkit::host::wait_until(Duration::from_secs(10), "the file is not locked", is_free);
    }

    #[test]
    fn connections_stay_with_their_ports_when_these_get_other_numbers() {
        let folder = std::env::temp_dir().join(format!("weft-names-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = path(&folder.join("h1.sock"));
        let HostConfig { config, mut program, .. } = host(&["a", "b"]);
        assert!(restore(&path, &config, &mut program).is_empty());
        settle(&path);
        remove(&path);
        let file = ConnectionFile::create(&path, 1000, None).unwrap();
        file.set_names(Area::Zones, zone_names(&program));
        file.set_names(Area::Ports, port_names(&config));
        let mut table = Table::new(config.conntrack.clone(), Seed::random(), 0);
        table.save_in(Box::new(file));
        for name in ["a", "b"] {
            let zone = zone_of(&program, name);
            let tracked = table.track(0, zone, &datagram(false), Nat::Apply);
            let opener = number_of(&config, name);
            table.commit(0, &tracked, &datagram(false), opener, &Commit::default()).unwrap();
            table.track(0, zone, &datagram(true), Nat::Apply);
        }
        let zone_of_b = zone_of(&program, "b");
        drop(table);
        settle(&path);

        // `a` no longer exists, and `c` gets its number.
        let HostConfig { config, mut program, .. } = host(&["c", "b"]);
        assert_eq!(restore(&path, &config, &mut program).len(), 1);
        assert_eq!(zone_of(&program, "b"), zone_of_b);
        settle(&path);
        let record = SavedState::read(&path).unwrap().unwrap().records.remove(0);
        assert_eq!((record.zone(), record.opener()), (zone_of_b, number_of(&config, "b")));

        // The switch of `b` has no port any more.
        let HostConfig { config, mut program, .. } = host(&["d"]);
        assert_eq!(restore(&path, &config, &mut program).len(), 0);
        settle(&path);
        assert_eq!(SavedState::read(&path).unwrap().unwrap().records.len(), 0);
        remove(&path);
        remove(&path);
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn users_of_zones_have_names_that_are_read_back() {
        let [a, b] = ["sw\"itch, \u{1f}\n", ""].map(str::to_owned);
        for user in [
            ZoneUser::Port { datapath: a.clone(), port: b.clone() },
            ZoneUser::Dnat(a.clone()),
            ZoneUser::Snat(b),
            ZoneUser::Hairpin(a.clone()),
            ZoneUser::Bridge { datapath: a, zone: 65535 },
        ] {
            assert_eq!(user_of(&name_of(&user)), Some(user));
        }
        for name in [
            "",
            "[]",
            "[\"port\",\"a\"]",
            "[\"snat\",\"a\",\"b\"]",
            "[\"bridge\",\"a\",\"x\"]",
            "[1,2]",
        ] {
            assert_eq!(user_of(name), None, "{name}");
        }
    }
}
