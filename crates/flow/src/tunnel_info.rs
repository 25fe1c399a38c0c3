//! The tunnel fields of a flow key ([`TunnelInfo`]), and the mapping of Geneve options to key
//! fields ([`TlvMap`]).

use crate::tunnel::{LogicalPortsField, stt};
use crate::{Field, FlowKey, LogicalPorts, OuterIp, TagLink, TunnelKey, TunnelType, tun_flags};
use std::net::{IpAddr, Ipv4Addr};
use wire::tunnel::geneve::LogicalPorts as WirePorts;
use wire::tunnel::geneve::{CLASS_OVN, GeneveOption, GeneveOptions, TYPE_LOGICAL_PORTS};
use wire::{Layer, ParseError};

/// Number of fields for tunnel options: `tun_metadata0` to `tun_metadata3`.
pub const TUNNEL_OPTIONS: usize = 4;

/// The options of a received frame, by key field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TunnelOptions {
    /// A slot is 0 if its bit in `present` is 0.
    values: [u64; TUNNEL_OPTIONS],
    present: u8,
}

impl TunnelOptions {
    /// The value of option `slot`, right aligned; `None` when the frame did not have it.
    pub fn get(&self, slot: usize) -> Option<u64> {
        self.values.get(slot).copied().filter(|_| self.present >> slot & 1 != 0)
    }

    /// Sets option `slot`, 0 to 3. Returns false when it is already set or there is no such slot.
    #[must_use]
    fn add(&mut self, slot: usize, value: u64) -> bool {
        match self.values.get_mut(slot) {
            Some(place) if self.present >> slot & 1 == 0 => {
                *place = value;
                self.present |= 1 << slot;
                true
            }
            _ => false,
        }
    }

    #[inline]
    fn write(&self, key: &mut FlowKey) {
        let [a, b, c, d] = self.values;
        key.set(Field::TunMetadata0, a.into());
        key.set(Field::TunMetadata1, b.into());
        key.set(Field::TunMetadata2, c.into());
        key.set(Field::TunMetadata3, d.into());
        key.set(Field::TunMetadataPresent, self.present.into());
    }
}

/// The tunnel that a frame arrived through: the fields of the outer and tunnel headers that flows
/// can match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelInfo {
    /// VNI, GRE key, STT's 64-bit context, or the key of the VLAN tags ([`TagLink::key`]); 0
    /// without a key.
    pub id: u64,
    /// Source address of the outer packet.
    pub source: IpAddr,
    /// Destination address of the outer packet.
    pub destination: IpAddr,
    /// Type of service or traffic class of the outer IP header.
    pub tos: u8,
    /// TTL or hop limit of the outer IP header.
    pub ttl: u8,
    /// The flags in [`tun_flags`].
    pub flags: u16,
    /// Tunnel options.
    pub options: TunnelOptions,
}

impl TunnelInfo {
    /// The tunnel fields of a frame that was decapsulated.
    ///
    /// The logical ports of a Geneve header are stored as with [`TlvMap::default`]; those of STT
    /// are part of the context. [`tun_flags::KEY`] is set: clear it for GRE without a key.
    /// [`tun_flags::CSUM`] is not set, because decapsulation does not report whether there was a
    /// checksum.
    pub fn new(tunnel: TunnelType, outer: &OuterIp, key: &TunnelKey) -> Self {
        let field = tunnel.descriptor().logical_ports;
        let ports = key.ports.filter(|_| field == LogicalPortsField::GeneveOption);
        let options = ports.map_or_else(TunnelOptions::default, logical_ports);
        Self {
            id: match field {
                LogicalPortsField::SttContext => stt::context(key),
                _ => key.datapath.0.into(),
            },
            source: outer.source,
            destination: outer.destination,
            tos: outer.traffic_class,
            ttl: outer.ttl,
            flags: tun_flags::KEY | if outer.dont_fragment { tun_flags::DF } else { 0 },
            options,
        }
    }

    /// The tunnel fields of a frame from a VLAN or QinQ link, which has no outer IP header. The key
    /// is [`TagLink::key`].
    pub fn of_link(link: TagLink) -> Self {
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            id: link.key().0.into(),
            source: unspecified,
            destination: unspecified,
            tos: 0,
            ttl: 0,
            flags: tun_flags::KEY,
            options: TunnelOptions::default(),
        }
    }

    #[inline]
    pub(crate) fn write(&self, key: &mut FlowKey) {
        key.set(Field::TunId, self.id.into());
        match self.source {
            IpAddr::V4(address) => key.set(Field::TunSrc, address.to_bits().into()),
            IpAddr::V6(address) => key.set(Field::TunIpv6Src, address.to_bits()),
        }
        match self.destination {
            IpAddr::V4(address) => key.set(Field::TunDst, address.to_bits().into()),
            IpAddr::V6(address) => key.set(Field::TunIpv6Dst, address.to_bits()),
        }
        key.set(Field::TunTos, self.tos.into());
        key.set(Field::TunTtl, self.ttl.into());
        key.set(Field::TunFlags, self.flags.into());
        self.options.write(key);
    }
}

/// OVN's option: ingress in bits 16 to 30, egress in bits 0 to 15.
fn logical_ports(ports: LogicalPorts) -> TunnelOptions {
    let value = WirePorts::from(ports).value().into();
    TunnelOptions { values: [value, 0, 0, 0], present: 1 }
}

/// A Geneve option that maps to a field (RFC 8926 section 3.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TlvOption {
    class: u16,
    kind: u8,
    len: u8,
}

impl TlvOption {
    /// Option class, type (its highest bit marks it critical), and bytes of data: 0, 4 or 8. `None`
    /// for any other length.
    pub const fn new(class: u16, kind: u8, len: u8) -> Option<Self> {
        if matches!(len, 0 | 4 | 8) { Some(Self { class, kind, len }) } else { None }
    }
}

/// The error for an option that cannot be mapped to a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TlvMapError {
    /// The slot is out of range.
    #[error("there is no tun_metadata{0}: expected 0 to 3")]
    NoSuchField(usize),
    /// The option is already mapped to another field.
    #[error("the option has the field tun_metadata{0} already")]
    Mapped(usize),
}

/// The mapping of Geneve options to `tun_metadata0` to `tun_metadata3`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlvMap([Option<TlvOption>; TUNNEL_OPTIONS]);

/// OVN's mapping: the logical-port option (class 0x0102, type 0x80, 4 bytes) is `tun_metadata0`.
impl Default for TlvMap {
    fn default() -> Self {
        let ports = TlvOption { class: CLASS_OVN, kind: TYPE_LOGICAL_PORTS, len: 4 };
        Self([Some(ports), None, None, None])
    }
}

impl TlvMap {
    /// A mapping without options.
    pub const fn empty() -> Self {
        Self([None; TUNNEL_OPTIONS])
    }

    /// Maps an option to `tun_metadata<slot>`, and replaces the previous option of that slot.
    ///
    /// # Errors
    /// [`TlvMapError`] for an invalid slot or an option that is already mapped. The map is
    /// unchanged then.
    pub fn set(&mut self, slot: usize, option: TlvOption) -> Result<(), TlvMapError> {
        let same = |had: &TlvOption| (had.class, had.kind) == (option.class, option.kind);
        let other = self.0.iter().position(|had| had.as_ref().is_some_and(same));
        if let Some(other) = other.filter(|&other| other != slot) {
            return Err(TlvMapError::Mapped(other));
        }
        *self.0.get_mut(slot).ok_or(TlvMapError::NoSuchField(slot))? = Some(option);
        Ok(())
    }

    /// The values of the mapped options. Other options are ignored; decapsulation decides whether
    /// an unknown critical one is allowed.
    ///
    /// # Errors
    /// `BadField` for a mapped option of another length, and for a repeated one, because its values
    /// could differ.
    pub fn read(&self, options: &GeneveOptions<'_>) -> Result<TunnelOptions, ParseError> {
        let mut values = TunnelOptions::default();
        for option in options.iter() {
            let ports;
            let (class, kind, data) = match option {
                GeneveOption::LogicalPorts(value) => {
                    ports = value.to_bytes();
                    (CLASS_OVN, TYPE_LOGICAL_PORTS, &ports[..])
                }
                GeneveOption::Unknown { class, kind, data } => (class, kind, data),
            };
            for (slot, mapped) in self.0.iter().enumerate() {
                let Some(mapped) = mapped.filter(|m| (m.class, m.kind) == (class, kind)) else {
                    continue;
                };
                if data.len() != usize::from(mapped.len) {
                    return Err(ParseError::field(Layer::Geneve, "length of a mapped option"));
                }
                let value = data.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
                if !values.add(slot, value) {
                    return Err(ParseError::field(Layer::Geneve, "repeated option"));
                }
            }
        }
        Ok(values)
    }
}
