//! What was chosen for this host, and why so.

use super::Daemon;
use super::deployed::Deployed;
use datapath::user::{DeviceConfig, PortConfig, Underlay};
use datapath_bpf::{TakenOver, sends_super_packets};
use doctor::choice::{self, Chosen};
use doctor::facts::{KernelVersion, NicFacts};
use flow::{TunnelSpec, TunnelType};
use network::Family;

impl Daemon {
    /// The datapath, what is done for every tunnel type in use, and for every port. Offloads may be switched at any time, so
    /// those are looked at now; what they were when the switch was made is in the reasons for what was chosen then.
    pub(super) fn chosen(&self) -> netdev::Result<Vec<Chosen>> {
        let in_use = self.in_use();
        let by_kernel = self.forwarding.is_kernel();
        let how = match by_kernel {
            true => "programs in the kernel, and threads for what they cannot do",
            false => "threads",
        };
        let mut all = vec![Chosen::new("datapath", how, &*self.forwarding.why)];
        all.extend(self.forwarding.taken_over().map(|it| took_over(&it)));
        let uplink = NicFacts::read(&in_use.config.uplink)?;
        if by_kernel {
            all.extend(
                self.forwarding.uplink_hook().map(|hook| choice::decap(&uplink, Some(&hook))),
            );
        } else {
            all.push(choice::decap(&uplink, None));
        }
        for (tunnel, spec) in used(&in_use) {
            all.push(sending(&in_use, &uplink, by_kernel, tunnel, spec));
            let options = in_use.network.options();
            let asked = match tunnel {
                TunnelType::Vxlan => options.vxlan.checksum,
                TunnelType::Geneve => options.geneve.checksum,
                TunnelType::Gre | TunnelType::Stt | TunnelType::Vlan | TunnelType::QinQ => continue,
            };
            all.push(in_use.checksum.chosen(tunnel, asked));
        }
        all.extend(in_use.config.ports.iter().map(port));
        Ok(all)
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

fn sending(
    in_use: &Deployed,
    uplink: &NicFacts,
    by_kernel: bool,
    tunnel: TunnelType,
    spec: Option<TunnelSpec>,
) -> Chosen {
    let family = in_use.network.underlay_family();
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

fn port(PortConfig { name, device, .. }: &PortConfig) -> Chosen {
    let (DeviceConfig::Vm { name: device, .. } | DeviceConfig::Interface { name: device, .. }) =
        device
    else {
        let why =
            "its device is weft's own, and the guest's kernel takes what it would have sent itself";
        return Chosen::new(format!("port {name}"), "super-packets whole", why);
    };
    match NicFacts::read(device) {
        Ok(nic) => choice::port(name, &nic),
        Err(error) => Chosen::new(format!("port {name}"), "not known", error.to_string()),
    }
}

/// What a daemon that was killed or stopped has left to this one.
fn took_over(TakenOver { megaflows, adopted, unreadable, missed }: &TakenOver) -> Chosen {
    let why = match unreadable {
        0 => "those that the network file of now decides alike for all their packets".to_owned(),
        lost => format!("{lost} were lost, another version of weft has laid them out"),
    };
    let how = format!("{adopted} of {megaflows} megaflows taken over, {missed} packets missed");
    Chosen::new("restart", how, why)
}
