//! The settings of a network's tunnel types, and the bytes that each adds to a packet.

use flow::{TunnelSettings, TunnelType};
use std::fmt;
use std::net::IpAddr;

/// The address family of the underlay, which determines the outer IP headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnderlayFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl UnderlayFamily {
    /// The family of an address.
    pub const fn of(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The other family.
    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    /// The IP version: 4 or 6.
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }
}

impl fmt::Display for UnderlayFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv{}", self.number())
    }
}

/// `[tunnel_options]`: the settings of every tunnel type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TunnelOptions {
    settings: [TunnelSettings; TunnelType::ALL.len()],
    /// Whether the maximum segment size of guests' TCP connections is lowered to fit their tunnels.
    pub clamp_mss: bool,
}

impl Default for TunnelOptions {
    fn default() -> Self {
        let mut settings =
            [TunnelType::ALL[0].descriptor().default_settings(); TunnelType::ALL.len()];
        for tunnel in TunnelType::ALL {
            settings[tunnel as usize] = tunnel.descriptor().default_settings();
        }
        Self { settings, clamp_mss: false }
    }
}

impl TunnelOptions {
    /// The settings of a tunnel type.
    pub const fn of(&self, tunnel: TunnelType) -> &TunnelSettings {
        &self.settings[tunnel as usize]
    }

    /// The settings of a tunnel type, to change them.
    pub const fn of_mut(&mut self, tunnel: TunnelType) -> &mut TunnelSettings {
        &mut self.settings[tunnel as usize]
    }
}

/// Bytes that a tunnel adds to a guest's IP packet, so that guest MTU + overhead = MTU of the
/// underlay; see [`flow::TunnelDescriptor::overhead_bytes`].
pub const fn overhead_bytes(
    tunnel: TunnelType,
    family: UnderlayFamily,
    options: &TunnelOptions,
) -> u16 {
    tunnel.overhead_bytes(matches!(family, UnderlayFamily::V6), options.of(tunnel))
}

/// Limits and timeouts of tracked connections where `[connections]` does not set them. One port may
/// open half of all connections, so that no guest can use up the whole table.
pub fn default_connections() -> conntrack::Config {
    let limits = conntrack::Limits { per_port: 500_000, ..Default::default() };
    conntrack::Config { limits, adaptive: true, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_follows_the_options_when_they_change_the_header() {
        let mut options = TunnelOptions::default();
        let overhead = overhead_bytes;
        assert_eq!(overhead(TunnelType::Geneve, UnderlayFamily::V4, &options), 58);
        options.of_mut(TunnelType::Geneve).logical_ports = false;
        options.of_mut(TunnelType::Gre).key = false;
        assert_eq!(overhead(TunnelType::Geneve, UnderlayFamily::V4, &options), 50);
        assert_eq!(overhead(TunnelType::Gre, UnderlayFamily::V4, &options), 38);
        let gre = options.of_mut(TunnelType::Gre);
        (gre.checksum, gre.key, gre.sequence) = (Some(true), true, true);
        assert_eq!(overhead(TunnelType::Gre, UnderlayFamily::V6, &options), 70);
        // These settings do not change the length: a zero checksum still has its field, and STT's
        // context contains the ports.
        options.of_mut(TunnelType::Vxlan).checksum = Some(false);
        options.of_mut(TunnelType::Stt).logical_ports = false;
        assert_eq!(overhead(TunnelType::Vxlan, UnderlayFamily::V4, &options), 50);
        assert_eq!(overhead(TunnelType::Stt, UnderlayFamily::V4, &options), 72);
    }
}
