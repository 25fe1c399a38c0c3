//! Implements the commands of the protocol.

use crate::config::{Attachment, Command, Environment, NetworkConfig};
use crate::daemon::{Attached, Daemon};
use crate::interface::{self, Settings};
use crate::ipam::Plugin;
use crate::outcome::{self, AddResult, Error, Interface, Ip, Route};
use ipnet::IpNet;
use netdev::Netns;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use wire::MacAddr;

/// How long CHECK waits until a newly attached port is up.
const SETTLE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// The prefix of the owner text of interfaces that this plugin attaches.
const OWNER: &str = "cni";

/// Executes a command. Returns the result to print, if there is one.
///
/// # Errors
/// The command failed. A failed ADD leaves nothing behind.
pub fn execute(environment: &Environment, config: &NetworkConfig) -> Result<Option<String>, Error> {
    match environment.command {
        Command::Add => add(environment, config).map(Some),
        Command::Del => del(environment.attachment()?, config).map(|()| None),
        Command::Check => check(environment, config).map(|()| None),
        Command::Gc => collect(config).map(|()| None),
        Command::Status => status(config).map(|()| None),
        Command::Version => Ok(None),
    }
}

/// The owner text for the daemon: `cni/NETWORK/CONTAINER/INTERFACE`. No part contains a slash.
fn owner_of(network: &str, attachment: &Attachment) -> String {
    format!("{OWNER}/{network}/{}/{}", attachment.container, attachment.ifname)
}

/// The reverse of [`owner_of`]; `None` for owners in other networks.
fn attachment_of(owner: &str, network: &str) -> Option<Attachment> {
    let rest = owner.strip_prefix(OWNER)?.strip_prefix('/')?;
    let (container, ifname) = rest.strip_prefix(network)?.strip_prefix('/')?.split_once('/')?;
    Some(Attachment { container: container.to_owned(), ifname: ifname.to_owned() })
}

fn add(environment: &Environment, config: &NetworkConfig) -> Result<String, Error> {
    let attachment = environment.attachment()?;
    let path = environment.netns.as_deref().unwrap_or(Path::new(""));
    let netns = interface::open_netns(path)?;
    if interface::exists(&attachment.ifname, &netns)? {
        let why = format!("{} exists in {}", attachment.ifname, path.display());
        return Err(Error::new(outcome::ENVIRONMENT, "CNI_IFNAME is taken", why));
    }
    let daemon = Daemon::of(config)?;
    // Removes what a killed ADD for this container left behind.
    undo(attachment, config, &daemon)?;
    let ipam = Plugin::find(config)?;
    let added = attach(environment, config, (&daemon, ipam.as_ref()), &netns);
    if added.is_err() {
        // Errors of the cleanup are ignored: the first error says more.
        let _ = undo(attachment, config, &daemon);
        let _ = ipam.map(|ipam| ipam.execute_as("DEL"));
    }
    added
}

/// Gets the addresses, creates the veth pair, attaches its host end and configures the container's
/// end.
fn attach(
    environment: &Environment,
    config: &NetworkConfig,
    (daemon, ipam): (&Daemon, Option<&Plugin<'_>>),
    netns: &Netns,
) -> Result<String, Error> {
    let attachment = environment.attachment()?;
    let path = environment.netns.as_deref().unwrap_or(Path::new(""));
    let pools = daemon.pools()?.pools;
    let Some(pool) = pools.iter().find(|pool| pool.name == config.pool) else {
        let known: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
        let why = format!("this host has no pool {:?}, but [{}]", config.pool, known.join(", "));
        return Err(Error::new(outcome::CONFIG, "invalid network configuration", why));
    };
    let assigned = ipam.map(ipam_result).transpose()?;
    let addresses = match &assigned {
        Some(assigned) => assigned.ips.iter().map(|ip| Ok(net(&ip.address)?.addr())).collect(),
        None => {
            let mut addresses = config.requested_addresses()?;
            addresses.extend(&environment.addresses);
            Ok(addresses)
        }
    };
    let host = interface::host_name(&config.name, attachment);
    interface::create(&host, &attachment.ifname, netns, pool.mtu)?;
    let owner = owner_of(&config.name, attachment);
    let port = daemon.add_port(&config.pool, &host, &owner, &addresses?)?;
    let mut result = match assigned {
        Some(assigned) => assigned,
        None => daemon_result(&port, config)?,
    };
    let addresses: Vec<IpNet> =
        result.ips.iter().map(|ip| net(&ip.address)).collect::<Result<_, _>>()?;
    let gateways: Vec<IpAddr> =
        result.ips.iter().filter_map(|ip| ip.gateway.as_ref()?.parse().ok()).collect();
    let mac = mac(&port)?;
    let routes = &result.routes;
    let settings = Settings { mac, addresses: &addresses, routes, gateways: &gateways };
    interface::configure(&attachment.ifname, netns, &settings)?;
    let mtu = (config.cni_version == "1.1.0").then_some(u32::from(pool.mtu));
    result.interfaces = vec![
        Interface { name: host, mac: String::new(), mtu, sandbox: String::new() },
        Interface {
            name: attachment.ifname.clone(),
            mac: port.mac,
            mtu,
            sandbox: path.to_string_lossy().into_owned(),
        },
    ];
    for ip in &mut result.ips {
        ip.interface = Some(1);
        let version = if ip.address.contains(':') { "6" } else { "4" };
        ip.version = (!config.is_version_1()).then(|| version.to_owned());
    }
    result.cni_version.clone_from(&config.cni_version);
    if config.dns.is_object() {
        result.dns = config.dns.clone();
    }
    if !result.dns.is_object() {
        result.dns = serde_json::json!({});
    }
    serde_json::to_string(&result)
        .map_err(|error| Error::new(outcome::IO, "cannot write the result", error))
}

/// The addresses and routes that the IPAM plugin assigns.
fn ipam_result(ipam: &Plugin<'_>) -> Result<AddResult, Error> {
    let text = ipam.execute()?;
    let assigned: AddResult = serde_json::from_slice(&text)
        .map_err(|error| Error::new(outcome::DECODE, "cannot decode the result of IPAM", error))?;
    if assigned.ips.is_empty() {
        return Err(Error::new(outcome::CONFIG, "the IPAM plugin gives no address", ""));
    }
    Ok(assigned)
}

/// The addresses of the port, and routes to the router of its switch.
fn daemon_result(port: &Attached, config: &NetworkConfig) -> Result<AddResult, Error> {
    let mut result = AddResult { routes: config.ipam.routes.clone(), ..AddResult::default() };
    let add_routes = config.default_route && config.ipam.routes.is_empty();
    for address in &port.addresses {
        let own = net(address)?;
        let gateway = port.gateways.iter().find(|gateway| own.contains(*gateway));
        let gateway = gateway.map(ToString::to_string);
        if let (Some(gateway), true) = (&gateway, add_routes) {
            let any = if own.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            result.routes.push(Route { dst: any.to_owned(), gw: Some(gateway.clone()) });
        }
        result.ips.push(Ip { address: address.clone(), gateway, ..Ip::default() });
    }
    Ok(result)
}

fn net(text: &str) -> Result<IpNet, Error> {
    text.parse().map_err(|_| {
        Error::new(outcome::DECODE, "invalid address", format!("{text:?} has no prefix length"))
    })
}

fn mac(port: &Attached) -> Result<MacAddr, Error> {
    port.mac.parse().map_err(|_| {
        let why = format!("the network file no longer has the port {}", port.port);
        Error::new(outcome::NOT_AS_EXPECTED, "the port has no MAC address", why)
    })
}

/// Detaches the interface and removes it. In this order, the daemon does not report a missing
/// interface.
fn undo(attachment: &Attachment, config: &NetworkConfig, daemon: &Daemon) -> Result<(), Error> {
    let detached = daemon.delete_ports_of(&owner_of(&config.name, attachment));
    interface::remove(&interface::host_name(&config.name, attachment))?;
    detached
}

fn del(attachment: &Attachment, config: &NetworkConfig) -> Result<(), Error> {
    // Releases the addresses first. If that fails, the daemon still lists the interface, so GC can
    // release them.
    let released = Plugin::find(config).and_then(|ipam| match ipam {
        Some(ipam) => ipam.execute().map(drop),
        None => Ok(()),
    });
    match Daemon::of(config) {
        Ok(daemon) => undo(attachment, config, &daemon)?,
        Err(error) => {
            interface::remove(&interface::host_name(&config.name, attachment))?;
            return Err(error);
        }
    }
    released
}

fn check(environment: &Environment, config: &NetworkConfig) -> Result<(), Error> {
    let attachment = environment.attachment()?;
    let differs = |why: String| {
        Error::new(outcome::NOT_AS_EXPECTED, "the container's network is not as expected", why)
    };
    let Some(expected) = &config.prev_result else {
        let why = "`prevResult` is missing; CHECK needs it";
        return Err(Error::new(outcome::CONFIG, "invalid network configuration", why));
    };
    if let Some(ipam) = Plugin::find(config)? {
        ipam.execute()?;
    }
    let daemon = Daemon::of(config)?;
    let (owner, host) =
        (owner_of(&config.name, attachment), interface::host_name(&config.name, attachment));
    let end = Instant::now() + SETTLE;
    let port = loop {
        let attached = daemon.pools()?.attached;
        let Some(port) = attached.into_iter().find(|it| it.owner == owner && it.device == host)
        else {
            return Err(differs(format!("the daemon has not attached {host}")));
        };
        match port.state.as_deref() {
            // The state is `up, behind NAME` if another program is attached before weft's.
            Some(state) if state.split(',').next() == Some("up") => break port,
            _ if Instant::now() < end => std::thread::sleep(PAUSE),
            state => {
                let state = state.unwrap_or("gone: the network file no longer has it");
                return Err(differs(format!("port {} is {state}", port.port)));
            }
        }
    };
    let netns = interface::open_netns(environment.netns.as_deref().unwrap_or(Path::new("")))?;
    // Other plugins of the chain may have added more interfaces and addresses.
    let own = expected.interfaces.iter().position(|it| it.name == attachment.ifname);
    let ips = expected.ips.iter().filter(|ip| ip.interface.is_none() || ip.interface == own);
    let addresses: Vec<IpNet> = ips.map(|ip| net(&ip.address)).collect::<Result<_, _>>()?;
    match interface::difference(&attachment.ifname, &netns, mac(&port)?, &addresses)? {
        None => Ok(()),
        Some(why) => Err(differs(why)),
    }
}

/// Removes everything of this network that belongs to no valid attachment.
fn collect(config: &NetworkConfig) -> Result<(), Error> {
    let mut errors = Vec::new();
    let valid: Vec<String> =
        config.valid.iter().map(|it| interface::host_name(&config.name, it)).collect();
    let is_stale = |name: &String| !valid.contains(name);
    let ipam = Plugin::find(config).unwrap_or_else(|error| {
        errors.push(error);
        None
    });
    let daemon = Daemon::of(config);
    match daemon.and_then(|daemon| Ok((daemon.pools()?.attached, daemon))) {
        Ok((attached, daemon)) => {
            for row in attached.iter().filter(|row| is_stale(&row.device)) {
                let Some(attachment) = attachment_of(&row.owner, &config.name) else { continue };
                // IPAM plugins before CNI 1.1 do not support GC.
                errors.extend(ipam.as_ref().and_then(|ipam| ipam.release(&attachment).err()));
                errors.extend(daemon.delete_ports_of(&row.owner).err());
            }
        }
        Err(error) => errors.push(error),
    }
    match interface::host_ends(&config.name) {
        Ok(ends) => {
            let stale = ends.iter().filter(|name| is_stale(name));
            errors.extend(stale.filter_map(|name| interface::remove(name).err()));
        }
        Err(error) => errors.push(error),
    }
    errors.extend(ipam.and_then(|ipam| ipam.execute().err()));
    if errors.len() <= 1 {
        return errors.pop().map_or(Ok(()), Err);
    }
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    Err(Error::new(outcome::LATER, "cannot remove everything", texts.join("; ")))
}

fn status(config: &NetworkConfig) -> Result<(), Error> {
    let unavailable = |why: String| Error::new(outcome::UNAVAILABLE, "ADD would fail", why);
    let pools = Daemon::of(config)?.at_once().pools()?.pools;
    match pools.iter().find(|pool| pool.name == config.pool) {
        None => return Err(unavailable(format!("this host has no pool {:?}", config.pool))),
        Some(pool) if pool.free == 0 => {
            return Err(unavailable(format!("pool {} has no free port", pool.name)));
        }
        Some(_) => {}
    }
    match Plugin::find(config)? {
        Some(ipam) => ipam.execute().map(drop),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_of_one_network_only() {
        let attachment = Attachment { container: "c.1".to_owned(), ifname: "eth0".to_owned() };
        let owner = owner_of("pods", &attachment);
        assert_eq!(owner, "cni/pods/c.1/eth0");
        assert_eq!(attachment_of(&owner, "pods"), Some(attachment));
        assert_eq!(attachment_of(&owner, "pod"), None);
        assert_eq!(attachment_of("me", "pods"), None);
    }
}
