//! Whether all ports and tunnels of a host fit into what the system lets one process have open.

use anyhow::{Result, bail};
use datapath::config::Config;
use flow::TunnelType;
use std::collections::HashSet;

/// What is open besides tunnels and ports: standard streams, signals, epoll, netlink, the uplink, the control socket and its
/// clients, and what is open for a moment while a port is made.
const BESIDES: u64 = 60;
/// What each thread that forwards has for itself: an epoll, what wakes it, and two sockets on the uplink.
const PER_WORKER: u64 = 4;

/// Lets this process have as many files open as it may, and checks that the switch fits.
///
/// # Errors
/// It does not. Otherwise it would show as one port or socket after the other that cannot be opened.
pub fn check(config: &Config) -> Result<()> {
    let allowed = match netdev::limits::raise_open_files() {
        Ok(allowed) => allowed,
        Err(error) => {
            // There may be enough as it is; what lacks is said when it is opened.
            tracing::warn!("{error}");
            return Ok(());
        }
    };
    fits(config, allowed)
}

fn fits(config: &Config, allowed: u64) -> Result<()> {
    let needed = needed(config);
    if needed > allowed {
        bail!(
            "the switch of {} needs up to {needed} open files for {} ports and {} tunnel end points of its own, but may have \
             {allowed}: raise the limit, for example with `ulimit -Hn {needed}` as root or with LimitNOFILE={needed} in a \
             unit of systemd",
            config.host,
            config.ports.len(),
            config.underlay.tunnels.len(),
        );
    }
    Ok(())
}

/// The most files that the switch has open at once.
fn needed(config: &Config) -> u64 {
    let udp = config
        .underlay
        .tunnels
        .iter()
        .filter(|tunnel| matches!(tunnel.spec.tunnel, TunnelType::Vxlan | TunnelType::Geneve));
    // Tunnels with the same address and the same checksums send from the same ports.
    let senders: HashSet<_> = udp.map(|tunnel| (tunnel.local, tunnel.spec.checksum)).collect();
    // What goes without checksum has sockets of its own beside those for trains.
    let sources: u64 = senders.iter().map(|(_, checksum)| if *checksum { 1 } else { 2 }).sum();
    let workers = config.workers.count.max(1) as u64;
    let groups =
        config.underlay.tunnels.iter().filter(|tunnel| tunnel.group.is_some()).count() as u64;
    let tunnels = config.underlay.tunnels.len() as u64 - groups;
    // Each worker has a queue of each device, and a socket of each tunnel; one more socket of each tunnel keeps the host's own
    // stack from answering. A multicast group is heard by one.
    BESIDES
        + workers * PER_WORKER
        + workers * config.ports.len() as u64
        + (workers + 1) * tunnels
        + groups
        + sources * u64::from(config.entropy_ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use network::Network;

    /// The switch of h1 with `ports` ports, all on one logical switch of each of these types.
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
        let mut numbers = crate::numbers::Numbers::default();
        let host = network.host("h1").unwrap();
        crate::plan::plan(&network, host, "network.toml", true, &mut numbers).unwrap().config
    }

    #[test]
    fn ports_and_tunnels_are_counted_when_a_switch_is_to_fit() {
        let files = |tunnels: &[&str], ports| needed(&config(tunnels, ports));
        let one = files(&["gre"], 1);
        assert_eq!(files(&["gre"], 2), one + 1, "one each port");
        let mut workers = config(&["gre"], 2);
        workers.workers.count = 3;
        assert_eq!(needed(&workers), one + 1 + 2 * (4 + 2 + 1), "and each worker has its own");
        let vxlan = files(&["vxlan"], 1);
        assert_eq!(vxlan, one + 64, "and a socket each source port of UDP");
        assert_eq!(files(&["vxlan", "geneve"], 1), vxlan + 2 + 1, "which two tunnels share");
    }

    #[test]
    fn refusal_says_how_many_files_are_needed_when_they_do_not_fit() {
        let config = config(&["vxlan"], 1000);
        let needed = needed(&config);
        assert!(fits(&config, needed).is_ok());
        let said = fits(&config, needed - 1).unwrap_err().to_string();
        assert!(said.contains("1000 ports") && said.contains(&format!("ulimit -Hn {needed}")));
    }
}
