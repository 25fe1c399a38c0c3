//! Checks that the ports and tunnels of a host fit into the limit of open files of this process.

use anyhow::{Result, bail};
use datapath::config::Config;
use flow::Carrier;
use std::collections::HashSet;

/// Descriptors that do not belong to a tunnel, a port or a thread: standard streams, signals,
/// epoll, netlink, the uplink, the control socket and its clients, and temporary ones while a port
/// is created.
const BASE: u64 = 60;
/// Descriptors of each forwarding thread: an epoll, its waker, and two sockets on the uplink.
const PER_WORKER: u64 = 4;

/// Raises the soft limit to the hard limit and checks that the switch fits. Without this check,
/// ports and sockets would fail to open one by one.
///
/// # Errors
/// The switch needs more open files than the hard limit allows.
pub fn require(config: &Config) -> Result<()> {
    let allowed = match netdev::limits::raise_open_files() {
        Ok(allowed) => allowed,
        Err(error) => {
            // The present limit may suffice; otherwise opening a port reports the error.
            messages::log!(OPEN_FILES_UNKNOWN, "{error}");
            return Ok(());
        }
    };
    fits(config, allowed)
}

fn fits(config: &Config, allowed: u64) -> Result<()> {
    let needed = needed(config);
    if needed > allowed {
        bail!(
            "the switch of {} needs up to {needed} open files for {} ports and {} local tunnel \
             ends, but its limit is {allowed}: raise the limit with `ulimit -Hn {needed}` as root, \
             or with LimitNOFILE={needed} in a systemd unit",
            config.host,
            config.ports.len(),
            config.underlay.tunnels.len(),
        );
    }
    Ok(())
}

/// Upper bound of the files that the switch has open at once.
fn needed(config: &Config) -> u64 {
    let udp = config
        .underlay
        .tunnels
        .iter()
        .filter(|tunnel| tunnel.spec.tunnel.carrier() == Carrier::Udp);
    // Tunnels with the same address and checksum setting share their sending sockets.
    let senders: HashSet<_> = udp.map(|tunnel| (tunnel.local, tunnel.spec.checksum)).collect();
    // UDP_SEGMENT needs a socket with checksums, so senders without checksums have a socket of each
    // type.
    let sources: u64 = senders.iter().map(|(_, checksum)| if *checksum { 1 } else { 2 }).sum();
    let workers = config.workers.count.max(1) as u64;
    let groups =
        config.underlay.tunnels.iter().filter(|tunnel| tunnel.group.is_some()).count() as u64;
    let tunnels = config.underlay.tunnels.len() as u64 - groups;
    // Each worker has a queue of each device and a socket for each tunnel. One more socket for each
    // tunnel keeps the host's network stack from replying to tunnel packets. One worker reads each
    // multicast group.
    BASE + workers * PER_WORKER
        + workers * config.ports.len() as u64
        + (workers + 1) * tunnels
        + groups
        + sources * u64::from(config.entropy_ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use network::Network;

    /// The configuration of h1 with one logical switch of each type and `ports` ports on each.
    fn config(tunnels: &[&str], ports: usize) -> Config {
        use std::fmt::Write;
        let mut text = String::new();
        for (number, name) in [(1, "h1"), (2, "h2")] {
            let underlay = format!("underlay = [\"192.0.2.{number}\"]");
            writeln!(text, "[[host]]\nname = \"{name}\"\nuplink = \"eth0\"\n{underlay}").unwrap();
        }
        for (index, tunnel) in tunnels.iter().enumerate() {
            let head = format!("name = \"{tunnel}\"\ntunnel = \"{tunnel}\"\nvni = 1");
            writeln!(text, "[[logical_switch]]\n{head}").unwrap();
            for port in 0..ports {
                let name = format!("{tunnel}-{port}");
                let device = format!("device = {{ tap = \"t{index}-{port}\" }}");
                let mac = format!("mac = \"02:00:00:00:{:02x}:{:02x}\"", port >> 8, port & 255);
                writeln!(text, "[[logical_switch.port]]\nname = \"{name}\"").unwrap();
                writeln!(text, "host = \"h1\"\n{mac}\n{device}").unwrap();
            }
            writeln!(text, "[[logical_switch.port]]\nname = \"{tunnel}-far\"").unwrap();
            writeln!(text, "host = \"h2\"\nmac = \"02:00:00:00:ff:ff\"").unwrap();
            writeln!(text, "device = {{ tap = \"far{index}\" }}").unwrap();
        }
        let network =
            Network::parse(&text, "network.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let mut numbers = crate::host_numbers::HostNumbers::default();
        let host = network.host("h1").unwrap();
        crate::host_config::build(&network, host, "network.toml", true, &mut numbers, |_| None)
            .unwrap()
            .config
    }

    #[test]
    fn needed_files_grow_with_ports_workers_and_tunnels() {
        let files = |tunnels: &[&str], ports| needed(&config(tunnels, ports));
        let one = files(&["gre"], 1);
        assert_eq!(files(&["gre"], 2), one + 1, "one file per port");
        let mut workers = config(&["gre"], 2);
        workers.workers.count = 3;
        assert_eq!(needed(&workers), one + 1 + 2 * (4 + 2 + 1), "each worker opens its own files");
        let vxlan = files(&["vxlan"], 1);
        assert_eq!(vxlan, one + 64, "one socket per source port");
        assert_eq!(
            files(&["vxlan", "geneve"], 1),
            vxlan + 2 + 1,
            "two tunnels share the source ports"
        );
    }

    #[test]
    fn error_states_the_needed_limit_when_the_switch_does_not_fit() {
        let config = config(&["vxlan"], 1000);
        let needed = needed(&config);
        assert!(fits(&config, needed).is_ok());
        let error = fits(&config, needed - 1).unwrap_err().to_string();
        assert!(error.contains("1000 ports") && error.contains(&format!("ulimit -Hn {needed}")));
    }
}
