//! What was chosen for this host, and why so.

use super::Daemon;
use super::deployed::Deployed;
use datapath::config::{DeviceConfig, PortConfig, Underlay};
use datapath_bpf::{Adoption, sends_super_packets};
use datapath_user::fast_path::{is_vxlan_gro_enabled, veth_name};
use doctor::choice::{self, Chosen};
use doctor::facts::{Features, KernelVersion, NicFacts};
use flow::{TunnelSpec, TunnelType};
use netdev::Ethtool;
use network::Family;

const NOT_KNOWN: &str = "not known";

impl Daemon {
    /// The datapath, what is done for every tunnel type in use, and for every port. Offloads may be switched at any time, so
    /// those are looked at now; what they were when the switch was made is in the reasons for what was chosen then.
    pub(super) fn chosen(&self) -> Vec<Chosen> {
        let in_use = self.in_use();
        let by_kernel = self.forwarding.is_kernel();
        let how = match by_kernel {
            true => "programs in the kernel, and threads for what they cannot do",
            false => "threads",
        };
        let mut all = vec![Chosen::new("datapath", how, &*self.forwarding.why)];
        all.extend(self.forwarding.taken_over().map(|it| took_over(&it)));
        match NicFacts::read(&in_use.config.uplink) {
            Ok(uplink) => all.extend(self.by_uplink(&in_use, &uplink)),
            Err(error) => all.push(Chosen::new("uplink", NOT_KNOWN, error.to_string())),
        }
        all.extend(in_use.config.ports.iter().map(|config| port(config, by_kernel)));
        all
    }

    /// What depends on the uplink.
    fn by_uplink(&self, in_use: &Deployed, uplink: &NicFacts) -> Vec<Chosen> {
        let by_kernel = self.forwarding.is_kernel();
        let decap = match (by_kernel, self.forwarding.uplink_hook()) {
            (false, _) => Chosen::new("decap", "threads", "the user datapath forwards"),
            (true, None) => Chosen::new(
                "decap",
                "threads",
                format!("no program is attached to {}", uplink.name),
            ),
            (true, Some(hook)) => choice::decap_by_programs(uplink, &hook),
        };
        let mut all = vec![decap];
        let (family, options) = (in_use.network.underlay_family(), in_use.network.options());
        for (tunnel, spec) in used(in_use) {
            all.push(sending(uplink, family, by_kernel, tunnel, spec));
            if self.forwarding.uplink_hook().is_some() && tunnel != TunnelType::Stt {
                all.push(received(uplink, tunnel));
            }
            let asked = match tunnel {
                TunnelType::Vxlan => options.vxlan.checksum,
                TunnelType::Geneve => options.geneve.checksum,
                TunnelType::Gre | TunnelType::Stt | TunnelType::Vlan | TunnelType::QinQ => continue,
            };
            all.push(in_use.checksum.chosen(tunnel, family, by_kernel, asked));
        }
        all
    }
}

/// The tunnel types in use, in the order of all types; of those with end points, what they are like.
fn used(in_use: &Deployed) -> Vec<(TunnelType, Option<TunnelSpec>)> {
    let Underlay { tunnels, links, .. } = &in_use.config.underlay;
    let find = |tunnel: TunnelType| {
        let spec = tunnels.iter().map(|used| used.spec).find(|spec| spec.tunnel == tunnel);
        let is_used = spec.is_some() || links.iter().any(|used| used.link.tunnel() == tunnel);
        is_used.then_some((tunnel, spec))
    };
    TunnelType::ALL.into_iter().filter_map(find).collect()
}

/// How segments come out of `tunnel` to the programs.
fn received(uplink: &NicFacts, tunnel: TunnelType) -> Chosen {
    let is_led = match tunnel {
        TunnelType::Vxlan => is_vxlan_gro_enabled(),
        _ => Ok(false),
    };
    match is_led {
        Ok(is_led) => choice::receiving(uplink, tunnel, is_led),
        Err(error) => Chosen::new(format!("{tunnel} received"), NOT_KNOWN, error.to_string()),
    }
}

fn sending(
    uplink: &NicFacts,
    family: Family,
    by_kernel: bool,
    tunnel: TunnelType,
    spec: Option<TunnelSpec>,
) -> Chosen {
    // Tags are put on by programs in any case.
    let by_programs =
        by_kernel && spec.is_none_or(|spec| sends_super_packets(&spec, family == Family::V6));
    choice::sending(
        uplink,
        KernelVersion::running().unwrap_or_default(),
        tunnel,
        family,
        by_programs,
    )
}

fn port(PortConfig { name, device, .. }: &PortConfig, by_kernel: bool) -> Chosen {
    let sent_by = match device {
        DeviceConfig::Vm { name, .. } | DeviceConfig::Interface { name, .. } => Some(name.clone()),
        DeviceConfig::Tap { .. } => veth_name(device).filter(|_| by_kernel),
    };
    let Some(sent_by) = sent_by else {
        return choice::tap(name);
    };
    match Ethtool::open().and_then(|ethtool| Features::read(&ethtool, &sent_by)) {
        Ok(features) => choice::port(name, &sent_by, &features),
        Err(error) => Chosen::new(format!("port {name}"), NOT_KNOWN, error.to_string()),
    }
}

/// What a daemon that was killed or stopped has left to this one.
fn took_over(Adoption { megaflows, adopted, unreadable, missed }: &Adoption) -> Chosen {
    let why = match unreadable {
        0 => "those that the network file of now decides alike for all their packets".to_owned(),
        lost => format!("{lost} were lost, another version of weft has laid them out"),
    };
    let how = format!("{adopted} of {megaflows} megaflows taken over, {missed} packets missed");
    Chosen::new("restart", how, why)
}
