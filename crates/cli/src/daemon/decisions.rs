//! The daemon's decisions for this host, with reasons: the datapath, checksums, and how packets of
//! each tunnel type and port are segmented. `weft show` prints this list.

use super::Daemon;
use super::deployment::Deployment;
use datapath::config::{DeviceConfig, PortConfig, Underlay};
use datapath_bpf::{Adoption, sends_super_packets};
use datapath_user::fast_path::{is_vxlan_gro_enabled, veth_name};
use doctor::choice::{self, Decision};
use doctor::facts::{Features, KernelVersion, NicFacts};
use flow::{Carrier, KernelDatapath, TunnelSpec, TunnelType};
use netdev::Ethtool;
use network::UnderlayFamily;
use std::sync::PoisonError;

const UNKNOWN: &str = "not known";

impl Daemon {
    /// The decisions for the datapath, every tunnel type in use, and every port. Operators may
    /// change offloads at any time, so this function reads them again. Decisions that were made at
    /// the start keep their reasons.
    pub(super) fn decisions(&self) -> Vec<Decision> {
        let deployment = self.deployment();
        let is_kernel = self.provider.is_kernel();
        let is_none = self.provider.is_none();
        let how = match is_kernel {
            true => "kernel (eBPF), with threads for what the programs cannot do",
            false if is_none => "none: packets are not handled",
            false => "user (threads)",
        };
        let mut all = vec![Decision::new("datapath", how, &*self.provider.reason)];
        if is_none {
            all.extend(self.ovn_decisions());
            return all;
        }
        all.extend(self.provider.adoption().map(|adopted| restart(&adopted)));
        match NicFacts::read_offloads(&deployment.config.uplink) {
            Ok(uplink) => all.extend(self.uplink_decisions(&deployment, &uplink)),
            Err(error) => all.push(Decision::new("uplink", UNKNOWN, error.to_string())),
        }
        all.extend(deployment.config.ports.iter().map(|config| port(config, is_kernel)));
        if deployment.network.is_none() {
            all.extend(self.ovn_decisions());
        }
        all
    }

    fn ovn_decisions(&self) -> Vec<Decision> {
        self.ovn.lock().unwrap_or_else(PoisonError::into_inner).decisions()
    }

    /// The decisions that depend on the uplink.
    fn uplink_decisions(&self, deployment: &Deployment, uplink: &NicFacts) -> Vec<Decision> {
        let is_kernel = self.provider.is_kernel();
        let decap = match (is_kernel, self.provider.uplink_hook()) {
            (false, _) => Decision::new("decap", "threads", "the user datapath forwards"),
            (true, None) => Decision::new(
                "decap",
                "threads",
                format!("no program is attached to {}", uplink.name),
            ),
            (true, Some(hook)) => choice::decap_by_programs(uplink, &hook),
        };
        let mut all = vec![decap];
        let (family, options) = (deployment.family, &deployment.tunnel_options);
        for (tunnel, spec) in tunnels_in_use(deployment) {
            all.push(sending(uplink, family, is_kernel, tunnel, spec));
            let kernel_datapath = tunnel.descriptor().kernel_datapath;
            let is_kernels = !matches!(kernel_datapath, KernelDatapath::Unsupported { .. });
            if self.provider.uplink_hook().is_some() && is_kernels {
                all.push(receiving(uplink, tunnel));
            }
            if tunnel.carrier() == Carrier::Udp {
                let configured = options.of(tunnel).checksum;
                all.push(deployment.checksum.chosen(tunnel, family, is_kernel, configured));
            }
        }
        all
    }
}

/// The tunnel types in use, in the order of [`TunnelType::ALL`]. The specification is `None` for
/// VLAN and QinQ, which have no end points.
fn tunnels_in_use(deployment: &Deployment) -> Vec<(TunnelType, Option<TunnelSpec>)> {
    let Underlay { tunnels, links, .. } = &deployment.config.underlay;
    let find = |tunnel: TunnelType| {
        let spec = tunnels.iter().map(|used| used.spec).find(|spec| spec.tunnel == tunnel);
        let is_used = spec.is_some() || links.iter().any(|used| used.link.tunnel() == tunnel);
        is_used.then_some((tunnel, spec))
    };
    TunnelType::ALL.into_iter().filter_map(find).collect()
}

/// Whether the programs see super-packets or segments of `tunnel`.
fn receiving(uplink: &NicFacts, tunnel: TunnelType) -> Decision {
    let has_gro_device = tunnel.descriptor().has_gro_device;
    let has_gro = if has_gro_device { is_vxlan_gro_enabled() } else { Ok(false) };
    match has_gro {
        Ok(has_gro) => choice::receiving(uplink, tunnel, has_gro),
        Err(error) => Decision::new(format!("{tunnel} received"), UNKNOWN, error.to_string()),
    }
}

fn sending(
    uplink: &NicFacts,
    family: UnderlayFamily,
    is_kernel: bool,
    tunnel: TunnelType,
    spec: Option<TunnelSpec>,
) -> Decision {
    // The kernel datapath always pushes VLAN and QinQ tags in its programs.
    let by_programs = is_kernel
        && spec.is_none_or(|spec| sends_super_packets(&spec, family == UnderlayFamily::V6));
    choice::sending(
        uplink,
        KernelVersion::running().unwrap_or_default(),
        tunnel,
        family,
        by_programs,
    )
}

fn port(PortConfig { name, device, .. }: &PortConfig, is_kernel: bool) -> Decision {
    let sending_device = match device {
        DeviceConfig::Vm { name, .. } | DeviceConfig::Interface { name, .. } => Some(name.clone()),
        DeviceConfig::Tap { .. } => veth_name(device).filter(|_| is_kernel),
    };
    let Some(sending_device) = sending_device else {
        return choice::tap(name);
    };
    match Ethtool::open().and_then(|ethtool| Features::read(&ethtool, &sending_device)) {
        Ok(features) => choice::port(name, &sending_device, &features),
        Err(error) => Decision::new(format!("port {name}"), UNKNOWN, error.to_string()),
    }
}

/// The row about the megaflows that this daemon adopted from the previous daemon.
fn restart(Adoption { megaflows, adopted, unreadable, missed }: &Adoption) -> Decision {
    let why = match unreadable {
        0 => "the network file still gives the same actions for all of their packets".to_owned(),
        lost => format!("{lost} were lost: another version of weft used another map layout"),
    };
    let how = format!("{adopted} of {megaflows} megaflows adopted, {missed} packets missed");
    Decision::new("restart", how, why)
}
