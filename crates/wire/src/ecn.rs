//! Explicit congestion notification through tunnels (RFC 6040, normal mode).
//!
//! ECN is the two lowest bits of the IPv4 type of service and of the IPv6 traffic class.
//! Encapsulation copies the inner bits to the outer header. Decapsulation combines both fields with
//! the table of RFC 6040 section 4.2 ([`decap`]).

use crate::ethernet::EtherType;
use crate::ipv4::Ipv4Packet;
use crate::ipv6::Ipv6Packet;
use crate::locate::Located;

const MASK: u8 = 0x03;

/// The ECN field (RFC 3168 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable transport.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, codepoint 1.
    Ect1 = 1,
    /// ECN-capable transport, codepoint 0.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The ECN field of a type of service or traffic class.
    #[inline]
    pub const fn of(tos: u8) -> Self {
        match tos & MASK {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// `tos` with this ECN field.
    #[inline]
    pub const fn put_in(self, tos: u8) -> u8 {
        (tos & !MASK) | self as u8
    }
}

/// The outer type of service or traffic class on encap: the DSCP bits of `outer_tos` with the ECN
/// field of `inner_tos` (RFC 6040 section 4.1, normal mode).
#[inline]
pub const fn encap(outer_tos: u8, inner_tos: u8) -> u8 {
    Ecn::of(inner_tos).put_in(outer_tos)
}

/// How suspicious a combination of inner and outer fields is (the marks in RFC 6040 figure 4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EcnAnomaly {
    /// A combination that correct tunnels produce.
    None,
    /// "(!)": correct tunnels do not produce this combination today. It is harmless and may be
    /// logged.
    Unused,
    /// "(!!!)": a device in the underlay rewrites the ECN field illegally. It should be counted.
    Dangerous,
}

/// The result of ECN processing on decap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Decap {
    /// The new ECN field of the inner packet; `None` when the packet must be dropped.
    pub ecn: Option<Ecn>,
    /// How suspicious the combination of both fields is.
    pub anomaly: EcnAnomaly,
}

/// Combines the inner and the outer ECN field (RFC 6040 figure 4):
///
/// ```text
///            outer:  Not-ECT   ECT(0)        ECT(1)        CE
/// inner Not-ECT      Not-ECT   Not-ECT(!!!)  Not-ECT(!!!)  drop(!!!)
///       ECT(0)       ECT(0)    ECT(0)        ECT(1)        CE
///       ECT(1)       ECT(1)    ECT(1)(!)     ECT(1)        CE
///       CE           CE        CE            CE(!!!)       CE
/// ```
#[inline]
pub const fn decap(inner: Ecn, outer: Ecn) -> Decap {
    let (ecn, anomaly) = match (inner, outer) {
        (Ecn::NotEct, Ecn::Ce) => (None, EcnAnomaly::Dangerous),
        (Ecn::NotEct, Ecn::Ect0 | Ecn::Ect1) => (Some(Ecn::NotEct), EcnAnomaly::Dangerous),
        (Ecn::Ce, Ecn::Ect1) => (Some(Ecn::Ce), EcnAnomaly::Dangerous),
        (Ecn::Ect1, Ecn::Ect0) => (Some(Ecn::Ect1), EcnAnomaly::Unused),
        (Ecn::Ect0, Ecn::Ect1) => (Some(Ecn::Ect1), EcnAnomaly::None),
        (Ecn::Ect0 | Ecn::Ect1, Ecn::Ce) => (Some(Ecn::Ce), EcnAnomaly::None),
        (inner, _) => (Some(inner), EcnAnomaly::None),
    };
    Decap { ecn, anomaly }
}

/// Combines the outer ECN field into an inner IPv4 packet and updates its header checksum. A packet
/// that must be dropped is not changed.
pub fn decap_v4<T: AsRef<[u8]> + AsMut<[u8]>>(inner: &mut Ipv4Packet<T>, outer: Ecn) -> Decap {
    let tos = inner.tos();
    let decap = decap(Ecn::of(tos), outer);
    if let Some(ecn) = decap.ecn.filter(|ecn| *ecn != Ecn::of(tos)) {
        inner.set_tos(ecn.put_in(tos));
    }
    decap
}

/// Combines the outer ECN field into an inner IPv6 packet. A packet that must be dropped is not
/// changed.
pub fn decap_v6<T: AsRef<[u8]> + AsMut<[u8]>>(inner: &mut Ipv6Packet<T>, outer: Ecn) -> Decap {
    let class = inner.traffic_class();
    let decap = decap(Ecn::of(class), outer);
    if let Some(ecn) = decap.ecn.filter(|ecn| *ecn != Ecn::of(class)) {
        inner.set_traffic_class(ecn.put_in(class));
    }
    decap
}

/// Combines the outer ECN field into an inner Ethernet frame whose headers are at `located`. A
/// frame that is not IP has no ECN field and passes unchanged: RFC 6040 covers IP in IP only.
pub fn decap_frame(frame: &mut [u8], located: &Located, outer: Ecn) -> Decap {
    match (located.ethertype, frame.get_mut(located.l3..)) {
        (EtherType::IPV4, Some(inner)) => decap_v4(&mut Ipv4Packet::new_unchecked(inner), outer),
        (EtherType::IPV6, Some(inner)) => decap_v6(&mut Ipv6Packet::new_unchecked(inner), outer),
        _ => Decap { ecn: Some(Ecn::NotEct), anomaly: EcnAnomaly::None },
    }
}
