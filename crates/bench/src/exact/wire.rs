//! How the wire between two emulated hosts delivers packets.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::lab::{Contender, Datapath, GUEST_DEVICE, Lab, UPLINK};
use crate::{Error, Result};

/// How the receiver gets TCP segments. Both hosts are one machine, so a segment may share memory
/// with the sender's socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// The sender's own packets, as a veth pair delivers them. The sender's socket shares their
    /// headers until they are acknowledged. A receiver that changes the headers, such as an eBPF
    /// program that decapsulates, must copy them first.
    #[default]
    Shared,
    /// Packets that share no memory with the sender, as a network card delivers them.
    Copies,
}

impl Wire {
    /// Makes the uplinks of `lab` send as this wire does, or its guests' devices when the contender
    /// has no hosts. `contender` must have connected the guests already.
    ///
    /// # Errors
    /// The kernel refuses the eBPF program.
    pub(super) fn apply(self, lab: &Lab<'_>, contender: Contender) -> Result<()> {
        if self == Self::Shared {
            return Ok(());
        }
        let ends: Vec<_> = match contender {
            Contender::Direct => {
                lab.guests().iter().map(|guest| (guest.netns(), GUEST_DEVICE)).collect()
            }
            _ => lab.hosts().iter().map(|host| (host.netns(), UPLINK)).collect(),
        };
        for (netns, device) in ends {
            let index = netns.netlink()?.index_of(device)?;
            netns
                .run_in(|| datapath_bpf::lab::unclone_on_egress(index))?
                .map_err(Error::io(format!("have {device} send copies")))?;
        }
        Ok(())
    }

    /// Why `contender` cannot be counted on this wire, or `None` if it can. A userspace switch
    /// always sends unshared packets. This wire would change only the veth pair whose cost is
    /// subtracted.
    pub fn refuses(self, contender: Contender) -> Option<&'static str> {
        let in_userspace = matches!(
            contender,
            Contender::Weft(Datapath::User, _) | Contender::Ovs(Datapath::User, _)
        );
        let is_refused = self == Self::Copies && in_userspace;
        is_refused.then_some(
            "a userspace switch sends unshared packets on either wire: count it on the shared one",
        )
    }

    /// The kernel modules that this wire needs.
    pub(super) const fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Shared => &[],
            Self::Copies => &["sch_ingress", "cls_bpf"],
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Copies => "copies",
        })
    }
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        [Self::Shared, Self::Copies]
            .into_iter()
            .find(|wire| wire.to_string() == text)
            .ok_or_else(|| "expected shared or copies".to_owned())
    }
}
