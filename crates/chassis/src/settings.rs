//! [`Settings`]: this host's configuration as a member of the deployment, from `external_ids` of
//! the table Open_vSwitch in the local database.

use crate::tables::{OpenVswitch, Ssl, Text, TextMap};
use flow::{Dscp, TunnelType};
use ovsdb::{Remote, Replica};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of this host.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// `system-id`: the name of the chassis.
    pub system_id: Text,
    /// `hostname`, or the host's own name.
    pub hostname: Text,
    /// `ovn-remote`: the servers of the southbound database.
    pub remotes: Vec<Remote>,
    /// `ovn-encap-type`: the tunnel types, the preferred one first.
    pub tunnels: Vec<TunnelType>,
    /// `ovn-encap-ip`: this host's address in the underlay.
    pub encap_ip: IpAddr,
    /// `ovn-encap-csum`: whether UDP tunnels have outer checksums.
    pub checksum: bool,
    /// `ovn-encap-tos`: the DSCP of outer headers.
    pub dscp: Dscp,
    /// `ovn-bridge`: the integration bridge.
    pub bridge: Text,
    /// `ovn-bridge-mappings`, as text.
    pub bridge_mappings: Text,
    /// `ovn-cms-options`, as text.
    pub cms_options: Text,
    /// `ovn-transport-zones`.
    pub transport_zones: BTreeSet<Text>,
    /// `ovn-monitor-all`: whether this host reads the whole southbound database, instead of only
    /// the rows that it needs.
    pub monitor_all: bool,
    /// `ovn-remote-probe-interval`: `None` without probes.
    pub probe_interval: Option<Duration>,
    /// `garp-max-timeout-sec`: the longest interval between announcements of addresses, which are
    /// then repeated forever; `None` if they end after five.
    pub announce_interval: Option<Duration>,
    /// `weft-upcall-cpu-percent`: the most processor time for the upcalls of each guest's port, in
    /// percent of one processor; `None` for weft's default.
    pub upcall_cpu_percent: Option<u32>,
    /// The files of TLS, for `ssl:` remotes.
    pub tls: Option<TlsPaths>,
}

/// The paths of private key and certificates, from the table SSL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsPaths {
    /// The private key.
    pub private_key: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// The certificates of the authorities.
    pub ca_certificate: PathBuf,
}

/// Why the settings cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingsError {
    /// The database has no row of Open_vSwitch.
    #[error("the table Open_vSwitch is empty: run `ovs-vsctl init`")]
    NoRow,
    /// Keys are missing.
    #[error("Open_vSwitch lacks external_ids {keys}: set them with `ovs-vsctl set open .`")]
    Missing {
        /// The keys.
        keys: String,
    },
    /// A value is invalid.
    #[error("external_ids:{key}={value} of Open_vSwitch: {problem}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// The value.
        value: Text,
        /// The problem, and what to do about it.
        problem: String,
    },
}

impl Settings {
    /// Reads the settings. `hostname` is the host's own name.
    ///
    /// # Errors
    /// All missing keys, or the first invalid value.
    pub fn read(replica: &Replica, hostname: &str) -> Result<Self, SettingsError> {
        let (_, row) = replica.rows::<OpenVswitch>().next().ok_or(SettingsError::NoRow)?;
        let tls = row.ssl.and_then(|uuid| replica.get::<Ssl>(uuid)).map(|ssl| TlsPaths {
            private_key: ssl.private_key.into(),
            certificate: ssl.certificate.into(),
            ca_certificate: ssl.ca_cert.into(),
        });
        Ok(Self { tls, ..Self::from_external_ids(&row.external_ids, hostname)? })
    }

    /// The bridges of physical networks, by network, and the parts of `ovn-bridge-mappings` that
    /// are invalid.
    pub fn mappings(&self) -> (BTreeMap<Text, Text>, Vec<Text>) {
        let (mut bridges, mut invalid) = (BTreeMap::new(), Vec::new());
        let parts = self.bridge_mappings.split(',').map(str::trim).filter(|it| !it.is_empty());
        for part in parts {
            match part.split_once(':') {
                Some((network, bridge)) if !network.is_empty() && !bridge.is_empty() => {
                    bridges.insert(network.into(), bridge.into());
                }
                _ => invalid.push(part.into()),
            }
        }
        (bridges, invalid)
    }

    fn from_external_ids(ids: &TextMap, hostname: &str) -> Result<Self, SettingsError> {
        const REQUIRED: [&str; 4] = ["system-id", "ovn-remote", "ovn-encap-type", "ovn-encap-ip"];
        let text = |key: &str| ids.get(key).filter(|value| !value.is_empty()).cloned();
        let missing: Vec<_> = REQUIRED.into_iter().filter(|key| text(key).is_none()).collect();
        if !missing.is_empty() {
            return Err(SettingsError::Missing { keys: missing.join(", ") });
        }
        let or_empty = |key: &str| text(key).unwrap_or_default();
        let invalid = |key: &'static str, problem: String| SettingsError::Invalid {
            key,
            value: or_empty(key),
            problem,
        };
        let remotes = Remote::parse_list(&or_empty("ovn-remote"))
            .map_err(|error| invalid("ovn-remote", error.to_string()))?;
        let tunnels = tunnels(&or_empty("ovn-encap-type"))
            .map_err(|problem| invalid("ovn-encap-type", problem))?;
        let encap_ip = or_empty("ovn-encap-ip").parse().map_err(|_| {
            invalid("ovn-encap-ip", "expected one IP address of this host".to_owned())
        })?;
        let dscp = dscp(text("ovn-encap-tos").as_deref()).ok_or_else(|| {
            invalid("ovn-encap-tos", "expected `inherit` or a number from 0 to 255".to_owned())
        })?;
        let probe_ms = text("ovn-remote-probe-interval").and_then(|value| value.parse().ok());
        let probe_interval = Duration::from_millis(probe_ms.unwrap_or(5000));
        let announce_s = text("garp-max-timeout-sec").and_then(|value| value.parse::<u32>().ok());
        let announce_s = announce_s.filter(|seconds| *seconds > 0);
        let upcall_cpu_percent = upcall_cpu_percent(text("weft-upcall-cpu-percent").as_deref())
            .map_err(|problem| invalid("weft-upcall-cpu-percent", problem))?;
        let zones = or_empty("ovn-transport-zones");
        let zones = zones.split(',').map(str::trim).filter(|zone| !zone.is_empty());
        Ok(Self {
            system_id: or_empty("system-id"),
            hostname: text("hostname").unwrap_or_else(|| hostname.into()),
            remotes,
            tunnels,
            encap_ip,
            checksum: text("ovn-encap-csum").as_deref() != Some("false"),
            dscp,
            bridge: bridge(ids),
            bridge_mappings: or_empty("ovn-bridge-mappings"),
            cms_options: or_empty("ovn-cms-options"),
            announce_interval: announce_s.map(|seconds| Duration::from_secs(seconds.into())),
            transport_zones: zones.map(Text::from).collect(),
            monitor_all: text("ovn-monitor-all").as_deref() == Some("true"),
            probe_interval: (!probe_interval.is_zero()).then_some(probe_interval),
            upcall_cpu_percent,
            tls: None,
        })
    }
}

/// The integration bridge that `external_ids` name.
pub(crate) fn bridge(ids: &TextMap) -> Text {
    let named = ids.get("ovn-bridge").filter(|name| !name.is_empty());
    named.cloned().unwrap_or_else(|| "br-int".into())
}

/// Parses `ovn-encap-type`, in OVN's order of preference.
fn tunnels(text: &str) -> Result<Vec<TunnelType>, String> {
    let mut tunnels = Vec::new();
    for name in text.split(',').map(str::trim) {
        let found = PREFERENCE.into_iter().find(|tunnel| tunnel.name() == name);
        tunnels.push(found.ok_or_else(|| {
            let usable = PREFERENCE.map(TunnelType::name).join(" or ");
            if name == TunnelType::Vxlan.name() {
                "VXLAN cannot carry the logical ports of a tunnel between hosts: use ".to_owned()
                    + &usable
            } else {
                format!("`{name}` is no tunnel type of OVN: use {usable}")
            }
        })?);
    }
    tunnels.sort_by_key(|tunnel| preference(*tunnel));
    tunnels.dedup();
    Ok(tunnels)
}

/// OVN's tunnel types that carry logical ports, in the order in which it prefers them.
const PREFERENCE: [TunnelType; 2] = [TunnelType::Geneve, TunnelType::Stt];

/// The place of a tunnel type in OVN's order, for two hosts that have several in common.
pub(crate) fn preference(tunnel: TunnelType) -> usize {
    PREFERENCE.iter().position(|other| *other == tunnel).unwrap_or(PREFERENCE.len())
}

fn dscp(text: Option<&str>) -> Option<Dscp> {
    match text {
        None => Some(Dscp::Fixed(0)),
        Some("inherit") => Some(Dscp::Inherit),
        Some(number) => number.parse::<u8>().ok().map(|tos| Dscp::Fixed(tos >> 2)),
    }
}

fn upcall_cpu_percent(text: Option<&str>) -> Result<Option<u32>, String> {
    let Some(text) = text else { return Ok(None) };
    let percent = text.parse::<u32>().ok().filter(|percent| (1..=6400).contains(percent));
    percent.map(Some).ok_or_else(|| "expected a number from 1 to 6400".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let ids = pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect();
        Settings::from_external_ids(&ids, "host7")
    }

    const LEAST: [(&str, &str); 4] = [
        ("system-id", "h1"),
        ("ovn-remote", "tcp:192.0.2.9:6642"),
        ("ovn-encap-type", "stt,geneve"),
        ("ovn-encap-ip", "192.0.2.1"),
    ];

    #[test]
    fn defaults_are_those_of_ovn_when_only_the_required_keys_are_set() {
        let settings = read(&LEAST).unwrap();
        assert_eq!((&*settings.hostname, &*settings.bridge), ("host7", "br-int"));
        assert_eq!(settings.tunnels, [TunnelType::Geneve, TunnelType::Stt]);
        assert!(settings.checksum);
        assert_eq!(settings.probe_interval, Some(Duration::from_secs(5)));
        assert_eq!(settings.upcall_cpu_percent, None);
    }

    #[test]
    fn processor_time_for_upcalls_is_set_by_its_key() {
        let mut pairs = LEAST.to_vec();
        pairs.push(("weft-upcall-cpu-percent", "400"));
        assert_eq!(read(&pairs).unwrap().upcall_cpu_percent, Some(400));
    }

    #[test]
    fn bridge_mappings_are_pairs_and_others_are_named() {
        let mut pairs = LEAST.to_vec();
        pairs.push(("ovn-bridge-mappings", "physnet:br-ex, lan:br-lan,oops,:x,y:"));
        let (bridges, invalid) = read(&pairs).unwrap().mappings();
        let pairs: Vec<(&str, &str)> = bridges.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(pairs, [("lan", "br-lan"), ("physnet", "br-ex")]);
        assert_eq!(invalid, ["oops".into(), ":x".into(), "y:".into()] as [Text; 3]);
    }

    #[test]
    fn error_names_all_missing_keys() {
        let error = read(&LEAST[..2]).unwrap_err().to_string();
        assert!(error.contains("ovn-encap-type, ovn-encap-ip"), "{error}");
    }

    #[test]
    fn error_names_the_value_when_it_is_invalid() {
        for (key, value, why) in [
            ("ovn-encap-type", "vxlan", "use geneve or stt"),
            ("ovn-encap-type", "gre", "no tunnel type of OVN"),
            ("ovn-encap-ip", "eth0", "IP address"),
            ("ovn-remote", "tcp:db", "is no remote"),
            ("ovn-encap-tos", "256", "0 to 255"),
            ("weft-upcall-cpu-percent", "0", "1 to 6400"),
            ("weft-upcall-cpu-percent", "6401", "1 to 6400"),
            ("weft-upcall-cpu-percent", "10%", "1 to 6400"),
        ] {
            let mut pairs = LEAST.to_vec();
            pairs.retain(|(other, _)| *other != key);
            pairs.push((key, value));
            let error = read(&pairs).unwrap_err().to_string();
            assert!(error.contains(&format!("{key}={value}")) && error.contains(why), "{error}");
        }
    }
}
