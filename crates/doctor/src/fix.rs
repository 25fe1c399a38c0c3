//! Fixes that `weft doctor --fix` can apply: each is one step, is easily undone, and causes no
//! packet loss.

use netdev::{CpuMask, Error, Ethtool, Netlink, Netns, Steering};

/// A change, with the new and the old value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A sysctl, its parts joined by `/`.
    Sysctl {
        /// The key, such as `net/ipv4/conf/eth0/rp_filter`.
        key: String,
        /// The new value.
        value: String,
        /// The old value.
        was: String,
    },
    /// An offload of a device.
    Feature {
        /// The device.
        link: String,
        /// The name of the offload, such as `tx-udp-segmentation`.
        name: String,
        /// The new state.
        on: bool,
    },
    /// The CPUs that RPS distributes the packets of a receive queue to.
    Rps {
        /// The device.
        link: String,
        /// The queue, from 0.
        queue: usize,
        /// The new value.
        cpus: CpuMask,
        /// The old value.
        was: CpuMask,
    },
}

impl Action {
    /// The equivalent command.
    pub fn command(&self) -> String {
        match self {
            Self::Sysctl { key, value, .. } => format!("sysctl -w {}={value}", dotted(key)),
            Self::Feature { link, name, on } => {
                format!("ethtool -K {link} {name} {}", if *on { "on" } else { "off" })
            }
            Self::Rps { link, queue, cpus, .. } => {
                format!("echo {cpus} > /sys/class/net/{link}/queues/rx-{queue}/rps_cpus")
            }
        }
    }

    /// The action that undoes it.
    pub fn undo(&self) -> Self {
        match self.clone() {
            Self::Sysctl { key, value, was } => Self::Sysctl { key, value: was, was: value },
            Self::Feature { link, name, on } => Self::Feature { link, name, on: !on },
            Self::Rps { link, queue, cpus, was } => Self::Rps { link, queue, cpus: was, was: cpus },
        }
    }

    /// Applies it in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel's error; [`Error::is_permission`] without CAP_NET_ADMIN.
    pub fn apply(&self) -> Result<(), Error> {
        match self {
            Self::Sysctl { key, value, .. } => Netns::current()?.sysctl(key, value),
            Self::Feature { link, name, on } => {
                let unchanged = Ethtool::open()?.set_features(link, &[(name, *on)])?;
                match unchanged.first() {
                    None => Ok(()),
                    Some(unchanged) => Err(Error::invalid(
                        self.command(),
                        format!("the device refuses: {:?}", unchanged.reason),
                    )),
                }
            }
            Self::Rps { link, queue, cpus, .. } => {
                Steering::set_rps(&Netlink::open()?.link(link)?, *queue, cpus)
            }
        }
    }
}

/// The key with dots, as `sysctl` prints it. A key that contains a device name with a dot keeps its
/// slashes.
fn dotted(key: &str) -> String {
    if key.contains('.') { key.to_owned() } else { key.replace('/', ".") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_what_an_administrator_would_type() {
        let sysctl = |key: &str| Action::Sysctl {
            key: key.to_owned(),
            value: "2".to_owned(),
            was: "1".to_owned(),
        };
        let feature =
            Action::Feature { link: "eth0".to_owned(), name: "rx-gro".to_owned(), on: true };
        let rps = Action::Rps {
            link: "eth0".to_owned(),
            queue: 0,
            cpus: (0..33).collect(),
            was: CpuMask::default(),
        };
        let table = [
            (sysctl("net/ipv4/conf/eth0/rp_filter"), "sysctl -w net.ipv4.conf.eth0.rp_filter=2"),
            (
                sysctl("net/ipv4/conf/eth0.7/rp_filter"),
                "sysctl -w net/ipv4/conf/eth0.7/rp_filter=2",
            ),
            (feature.clone(), "ethtool -K eth0 rx-gro on"),
            (feature.undo(), "ethtool -K eth0 rx-gro off"),
            (rps.clone(), "echo 1,ffffffff > /sys/class/net/eth0/queues/rx-0/rps_cpus"),
            (rps.undo(), "echo 0 > /sys/class/net/eth0/queues/rx-0/rps_cpus"),
        ];
        for (action, command) in table {
            assert_eq!(action.command(), command);
            assert_eq!(action.undo().undo(), action);
        }
    }
}
