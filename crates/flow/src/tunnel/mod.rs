//! The tunnel types. Each is one module with a [`TunnelDescriptor`] and a header codec;
//! `types.in` lists them. See `docs/adr/0016-a-tunnel-type-is-one-module.md`, and
//! `docs/adding-a-tunnel.md` for how to add one.

mod codec;
mod descriptor;
mod geneve;
mod gre;
mod nvgre;
mod qinq;
mod settings;
pub(crate) mod stt;
mod vlan;
mod vxlan;

pub use codec::DecapOptions;
pub use descriptor::{
    Carrier, DeviceOffloads, HeaderLen, KernelDatapath, LogicalPortsField, NetworkId, TSO, TSO6,
    TunnelDescriptor,
};
pub use settings::{OptionKind, TunnelOption, TunnelSettings};

pub(crate) use codec::PacketFields;

use crate::decap::Decapped;
use crate::{DropReason, TunnelSpec};
use codec::TunnelCodec;
use std::fmt;
use std::str::FromStr;
use wire::udp::{self, UdpPacket, UdpRepr};

/// Defines [`TunnelType`] from one row for each type in `types.in`: its variant, its number and its
/// module. The kernel datapath's build script reads the same rows, to generate C constants.
///
/// The dispatch to a codec is a `match` that the compiler inlines, because it is on the path of
/// every packet.
macro_rules! tunnel_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal in $module:ident,)+) => {
        /// A tunnel type: how frames are carried between hosts.
        ///
        /// The numbers are stable: eBPF programs know a type by its number (`enum weft_tunnel`).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum TunnelType {
            $($(#[$doc])* $variant = $number,)+
        }

        impl TunnelType {
            /// All tunnel types, in the order in which output and documentation list them.
            pub const ALL: [Self; [$($number),+].len()] = [$(Self::$variant),+];

            /// The description of the type.
            #[inline]
            pub const fn descriptor(self) -> &'static TunnelDescriptor {
                match self {
                    $(Self::$variant => &$module::$variant::DESCRIPTOR,)+
                }
            }

            /// Writes a header template; see [`TunnelCodec::write_template`].
            pub(crate) fn write_template(self, spec: &TunnelSpec, header: &mut [u8]) {
                match self {
                    $(Self::$variant => $module::$variant::write_template(spec, header),)+
                }
            }

            /// Completes the tunnel header of a packet; see [`TunnelCodec::fill`].
            #[inline]
            pub(crate) fn fill(self, header: &mut [u8], packet: &PacketFields<'_>) {
                match self {
                    $(Self::$variant => $module::$variant::fill(header, packet),)+
                }
            }

            /// Parses the tunnel header at the beginning of `bytes`, and finds the inner frame. Not
            /// for STT, whose frames arrive in segments: see [`decap_stt`](crate::decap_stt).
            ///
            /// # Errors
            /// The reason under which the packet is counted as dropped:
            /// [`DropReason::MalformedTunnel`], [`DropReason::Malformed`] for a truncated frame,
            /// [`DropReason::TunnelProtocol`] for a payload that is not an Ethernet frame, and the
            /// reasons specific to the tunnel type.
            #[inline]
            pub fn decap(
                self,
                bytes: &[u8],
                expected: &DecapOptions,
            ) -> Result<Decapped, DropReason> {
                match self {
                    $(Self::$variant => $module::$variant::decap(bytes, expected),)+
                }
            }
        }
    };
}

include!("types.in");

impl TunnelType {
    /// The name in configuration files, in output and on command lines.
    pub const fn name(self) -> &'static str {
        self.descriptor().name
    }

    /// True for the types with an outer IP header, hence with remote end points.
    pub const fn has_endpoints(self) -> bool {
        self.descriptor().has_endpoints()
    }

    /// The protocol that carries the tunnel header.
    pub const fn carrier(self) -> Carrier {
        self.descriptor().carrier
    }

    /// True when the type has an option of this kind.
    pub const fn has_option(self, kind: OptionKind) -> bool {
        self.descriptor().option(kind).is_some()
    }
}

impl fmt::Display for TunnelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a text that is not the name of a tunnel type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownTunnelType(pub String);

impl fmt::Display for UnknownTunnelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = TunnelType::ALL.map(TunnelType::name);
        write!(f, "unknown tunnel type `{}`: expected one of {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownTunnelType {}

impl FromStr for TunnelType {
    type Err = UnknownTunnelType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.into_iter();
        all.find(|tunnel| tunnel.name() == text).ok_or_else(|| UnknownTunnelType(text.to_owned()))
    }
}

/// Writes the UDP header of a template, and returns the bytes after it.
fn udp_header<'a>(spec: &TunnelSpec, header: &'a mut [u8]) -> &'a mut [u8] {
    let (udp, rest) = header.split_at_mut(udp::HEADER_LEN);
    let repr = UdpRepr { src_port: 0, dst_port: spec.port, length: 0 };
    repr.emit(&mut UdpPacket::new_unchecked(udp));
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_name_and_by_no_other() {
        for tunnel in TunnelType::ALL {
            assert_eq!(tunnel.name().parse(), Ok(tunnel));
        }
        let error = "vxlan-gpe".parse::<TunnelType>().unwrap_err().to_string();
        assert!(error.starts_with("unknown tunnel type `vxlan-gpe`: expected one of vxlan, "));
    }

    #[test]
    fn descriptors_do_not_contradict_themselves() {
        for tunnel in TunnelType::ALL {
            let descriptor = tunnel.descriptor();
            let has_port = matches!(descriptor.carrier, Carrier::Udp | Carrier::TcpLike);
            assert_eq!(descriptor.default_port != 0, has_port, "{tunnel}");
            assert_eq!(tunnel.has_option(OptionKind::Port), has_port, "{tunnel}");
            assert_eq!(descriptor.network_id.tags() == 0, tunnel.has_endpoints(), "{tunnel}");
            let carries_ports = descriptor.logical_ports != LogicalPortsField::Absent;
            assert_eq!(tunnel.has_option(OptionKind::LogicalPorts), carries_ports, "{tunnel}");
            for option in descriptor.options {
                assert_eq!(descriptor.option(option.kind), Some(option), "{tunnel}: twice");
                assert!(option.example.starts_with(option.name), "{tunnel}: {option:?}");
            }
        }
    }

    #[test]
    fn overhead_is_that_of_the_design_when_options_are_default() {
        let overhead = |tunnel: TunnelType, is_ipv6| {
            tunnel.overhead_bytes(is_ipv6, &tunnel.descriptor().default_settings())
        };
        for (tunnel, v4, v6) in [
            (TunnelType::Vxlan, 50, 70),
            (TunnelType::Geneve, 58, 78),
            (TunnelType::Gre, 42, 62),
            (TunnelType::Nvgre, 42, 62),
            (TunnelType::Stt, 72, 92),
            (TunnelType::Vlan, 4, 4),
            (TunnelType::QinQ, 8, 8),
        ] {
            assert_eq!((overhead(tunnel, false), overhead(tunnel, true)), (v4, v6), "{tunnel}");
        }
    }
}
