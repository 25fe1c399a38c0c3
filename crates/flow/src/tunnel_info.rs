//! What a key says of the tunnel that a frame came by: [`TunnelInfo`], and [`TlvMap`], which gives Geneve options their
//! fields.

use crate::tunnel::{LogicalPortsField, stt};
use crate::{Field, FlowKey, LogicalPorts, OuterIp, TagLink, TunnelKey, TunnelType};
use std::net::{IpAddr, Ipv4Addr};
use wire::tunnel::geneve::LogicalPorts as WirePorts;
use wire::tunnel::geneve::{CLASS_OVN, GeneveOption, GeneveOptions, TYPE_LOGICAL_PORTS};
use wire::{Layer, ParseError};

/// The bits of [`Field::TunFlags`].
pub mod tun_flags {
    /// A control packet between end points (the O bit of Geneve).
    pub const OAM: u16 = 1 << 0;
    /// "Don't fragment" in the outer IPv4 header.
    pub const DF: u16 = 1 << 1;
    /// The tunnel header, or the UDP header in front of it, has a checksum.
    pub const CSUM: u16 = 1 << 2;
    /// The tunnel header has a key, which may be 0.
    pub const KEY: u16 = 1 << 3;
    /// Every flag with its name.
    pub const NAMES: [(&str, u16); 4] = [("df", DF), ("csum", CSUM), ("key", KEY), ("oam", OAM)];
}

/// Fields for tunnel options: `tun_metadata0` to `tun_metadata3`.
pub const TUNNEL_OPTIONS: usize = 4;

/// The options that a frame brought, by their fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TunnelOptions {
    /// 0 where the bit of `present` is 0.
    values: [u64; TUNNEL_OPTIONS],
    present: u8,
}

impl TunnelOptions {
    /// The value of option `slot`, right aligned; `None` when the frame did not bring it.
    pub fn get(&self, slot: usize) -> Option<u64> {
        self.values.get(slot).copied().filter(|_| self.present >> slot & 1 != 0)
    }

    /// Gives option `slot`, 0 to 3, a value; returns false when it has one or when there is no such option.
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

/// The tunnel that a frame came by: outer headers and tunnel header, as far as decisions may read them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelInfo {
    /// VNI, GRE key, STT's 64-bit context, or what tags stand for ([`TagLink::key`]); 0 without key.
    pub id: u64,
    /// Who sent the outer packet.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// Type of service or traffic class of the outer IP header.
    pub tos: u8,
    /// TTL or hop limit of the outer IP header.
    pub ttl: u8,
    /// See [`tun_flags`].
    pub flags: u16,
    /// Options.
    pub options: TunnelOptions,
}

impl TunnelInfo {
    /// From what decapsulation says. The logical ports of a Geneve header are where [`TlvMap::default`] has them, those of
    /// STT are part of the context. `key` is there but for GRE without one: clear [`tun_flags::KEY`] then. Nobody says
    /// whether there was a checksum: [`tun_flags::CSUM`] is not set.
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

    /// Of a frame that came by tags: there is no outer IP header, and [`TagLink::key`] is the key.
    pub fn of_link(link: TagLink) -> Self {
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            id: link.key().0.into(),
            source: nobody,
            destination: nobody,
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
    let value = u32::from_be_bytes(WirePorts::from(ports).to_bytes()).into();
    TunnelOptions { values: [value, 0, 0, 0], present: 1 }
}

/// A Geneve option that has a field (RFC 8926 section 3.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TlvOption {
    class: u16,
    kind: u8,
    len: u8,
}

impl TlvOption {
    /// Option class, type (its highest bit marks it critical), and bytes of data: 0, 4 or 8; `None` for another length.
    pub const fn new(class: u16, kind: u8, len: u8) -> Option<Self> {
        if matches!(len, 0 | 4 | 8) { Some(Self { class, kind, len }) } else { None }
    }
}

/// Why an option cannot have a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TlvMapError {
    /// There is no such field.
    #[error("there is no tun_metadata{0}: expected 0 to 3")]
    NoSuchField(usize),
    /// The option has one already.
    #[error("the option has the field tun_metadata{0} already")]
    Mapped(usize),
}

/// Which Geneve option goes to which of `tun_metadata0` to `tun_metadata3`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlvMap([Option<TlvOption>; TUNNEL_OPTIONS]);

/// OVN's: the logical-port option (class 0x0102, type 0x80, 4 bytes) is `tun_metadata0`.
impl Default for TlvMap {
    fn default() -> Self {
        let ports = TlvOption { class: CLASS_OVN, kind: TYPE_LOGICAL_PORTS, len: 4 };
        Self([Some(ports), None, None, None])
    }
}

impl TlvMap {
    /// No option has a field.
    pub const fn empty() -> Self {
        Self([None; TUNNEL_OPTIONS])
    }

    /// Gives an option the field `tun_metadata<slot>`, in the place of what had it.
    ///
    /// # Errors
    /// [`TlvMapError`]; the map is unchanged then.
    pub fn set(&mut self, slot: usize, option: TlvOption) -> Result<(), TlvMapError> {
        let same = |had: &TlvOption| (had.class, had.kind) == (option.class, option.kind);
        let other = self.0.iter().position(|had| had.as_ref().is_some_and(same));
        if let Some(other) = other.filter(|&other| other != slot) {
            return Err(TlvMapError::Mapped(other));
        }
        *self.0.get_mut(slot).ok_or(TlvMapError::NoSuchField(slot))? = Some(option);
        Ok(())
    }

    /// The values of the options that have fields. Options that have none are passed over; whether a critical one may be
    /// is for decapsulation to say.
    ///
    /// # Errors
    /// `BadField` for a mapped option with another length than the map says, and for one that is repeated: the two could
    /// differ.
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
