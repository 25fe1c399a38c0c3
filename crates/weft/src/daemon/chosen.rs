//! How packets of this host's tunnels leave it, and why so.

use super::Daemon;
use datapath::user::Underlay;
use datapath_bpf::TakenOver;
use doctor::facts::NicFacts;
use doctor::host::{Chosen, chosen};
use doctor::judge::tunnel::Outer;
use flow::TunnelType;

impl Daemon {
    /// For every tunnel type in use. Offloads may be switched at any time, so it is looked at now.
    pub(super) fn chosen(&self) -> netdev::Result<Vec<Chosen>> {
        let in_use = self.in_use();
        let Underlay { tunnels, links, .. } = &in_use.config.underlay;
        let is_used = |tunnel: &TunnelType| {
            tunnels.iter().any(|used| used.spec.tunnel == *tunnel)
                || links.iter().any(|used| used.link.tunnel() == *tunnel)
        };
        let used: Vec<_> = TunnelType::ALL.into_iter().filter(is_used).collect();
        let by_kernel = self.forwarding.is_kernel();
        let how = match by_kernel {
            true => "programs in the kernel, and threads for what they cannot do",
            false => "threads",
        };
        let datapath = Chosen {
            what: "datapath".to_owned(),
            how: how.to_owned(),
            why: self.forwarding.why.clone(),
        };
        let restart = self.forwarding.taken_over().map(|it| took_over(&it));
        let mut all = Vec::from_iter([datapath].into_iter().chain(restart));
        let outer = Outer::of(in_use.network.underlay_family());
        all.extend(chosen(&NicFacts::read(&in_use.config.uplink)?, &used, outer, by_kernel));
        Ok(all)
    }
}

/// What a daemon that was killed or stopped has left to this one.
fn took_over(TakenOver { megaflows, adopted, unreadable, missed }: &TakenOver) -> Chosen {
    let why = match unreadable {
        0 => "those that the network file of now decides alike for all their packets".to_owned(),
        lost => format!("{lost} were lost, another version of weft has laid them out"),
    };
    Chosen {
        what: "restart".to_owned(),
        how: format!("{adopted} of {megaflows} megaflows taken over, {missed} packets missed"),
        why,
    }
}
