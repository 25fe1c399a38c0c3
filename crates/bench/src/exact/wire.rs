//! How packets get from one host to the other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::lab::{Contender, Datapath, GUEST_DEVICE, Lab, UPLINK};
use crate::{Error, Result};

/// What the receiver of a TCP segment gets, where both hosts are one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// The packet itself, of which the sender's socket has the head, too, until it is acknowledged: what a veth pair does. Whoever changes
    /// its headers has to give it a head of its own first, as eBPF programs do that take outer headers off.
    #[default]
    Shared,
    /// A packet that is nobody else's, as from a network card.
    Copies,
}

impl Wire {
    /// Has what leaves a host in `lab`, or without hosts a guest, leave as this says. `contender` has joined the guests already.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub(super) fn lay(self, lab: &Lab<'_>, contender: Contender) -> Result<()> {
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

    /// Why `contender` is not counted on it, if so: what is in userspace sends packets of its own, which nothing copies once more, while the
    /// veth pair that is taken off its total would copy them.
    pub fn refuses(self, contender: Contender) -> Option<&'static str> {
        let in_userspace = matches!(
            contender,
            Contender::Weft(Datapath::User, _) | Contender::Ovs(Datapath::User, _)
        );
        let is_refused = self == Self::Copies && in_userspace;
        is_refused
            .then_some("its packets are nobody else's on either wire: count it on the shared one")
    }

    /// What the kernel needs for it, in modules.
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
