//! [`Translation`]: how NAT rewrites a packet.

use std::net::IpAddr;

use flow::{DropReason, Field, QuotedField, set_field, set_icmp_ident, set_quoted_field};
use packet::PacketBuf;

use crate::{Direction, State, Tuple};

/// How NAT rewrites one packet. `None` means that the value stays.
///
/// [`Translation::apply`] rewrites a packet. A datapath may use its own code instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Translation {
    /// The new source address.
    pub src: Option<IpAddr>,
    /// The new destination address.
    pub dst: Option<IpAddr>,
    /// The new source port; `None` in ICMP errors.
    pub src_port: Option<u16>,
    /// The new destination port; `None` in ICMP errors.
    pub dst_port: Option<u16>,
    /// The new ICMP identifier; `None` in ICMP errors.
    pub ident: Option<u16>,
    /// In an ICMP error: how NAT rewrites the quoted packet.
    pub quoted: Option<QuotedTranslation>,
}

/// How NAT rewrites the packet that an ICMP error quotes. `None` means that the value stays.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QuotedTranslation {
    /// The new source address.
    pub src: Option<IpAddr>,
    /// The new destination address.
    pub dst: Option<IpAddr>,
    /// The new source port.
    pub src_port: Option<u16>,
    /// The new destination port.
    pub dst_port: Option<u16>,
    /// The new ICMP identifier.
    pub ident: Option<u16>,
}

/// The ends of the tuple (address and port) that NAT changes in packets of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Manipulated {
    pub src: bool,
    pub dst: bool,
}

impl Manipulated {
    /// In a connection with source NAT, replies have their *destination* changed, and vice versa.
    pub const fn new(source_nat: bool, destination_nat: bool, direction: Direction) -> Self {
        match direction {
            Direction::Original => Self { src: source_nat, dst: destination_nat },
            Direction::Reply => Self { src: destination_nat, dst: source_nat },
        }
    }
}

impl Translation {
    /// The translation that gives a packet of tuple `from` the tuple `to`.
    pub(crate) fn of_packet(from: &Tuple, to: &Tuple, manipulated: Manipulated) -> Self {
        let mut translation = Self::default();
        if manipulated.src {
            translation.src = Some(to.src());
        }
        if manipulated.dst {
            translation.dst = Some(to.dst());
        }
        let ((src_port, dst_port), (old_src, old_dst)) = (to.parts(), from.parts());
        if to.has_ports() {
            translation.src_port =
                Some(src_port).filter(|&port| manipulated.src && port != old_src);
            translation.dst_port =
                Some(dst_port).filter(|&port| manipulated.dst && port != old_dst);
        } else if to.is_icmp() {
            translation.ident = Some(src_port).filter(|&ident| ident != old_src);
        }
        translation
    }

    /// The translation of an ICMP error, whose quoted packet has the tuple `from` and gets the
    /// tuple `to`. The quoted packet travelled in the opposite direction: the error's source
    /// address changes together with the quoted packet's destination address.
    pub(crate) fn of_error(from: &Tuple, to: &Tuple, manipulated: Manipulated) -> Self {
        let opposite = Manipulated { src: manipulated.dst, dst: manipulated.src };
        let quoted = Self::of_packet(from, to, opposite);
        Self {
            src: manipulated.src.then(|| to.dst()),
            dst: manipulated.dst.then(|| to.src()),
            quoted: Some(QuotedTranslation {
                src: quoted.src,
                dst: quoted.dst,
                src_port: quoted.src_port,
                dst_port: quoted.dst_port,
                ident: quoted.ident,
            }),
            ..Self::default()
        }
    }

    /// [`State::SNAT`] if the source address is rewritten, [`State::DNAT`] if the destination is.
    pub fn state(&self) -> State {
        let mut state = State::default();
        if self.src.is_some() {
            state |= State::SNAT;
        }
        if self.dst.is_some() {
            state |= State::DNAT;
        }
        state
    }

    /// Rewrites `packet`, and updates its checksums. It also handles super-packets, and partial
    /// checksums that a network card completes later.
    ///
    /// The caller applies the translation to every fragment of a fragmented packet. Only the first
    /// fragment has ports; in the others, only addresses change.
    ///
    /// # Errors
    /// [`DropReason::NotApplicable`] for the ports of a fragmented SCTP packet, because its
    /// checksum covers bytes in other fragments.
    pub fn apply(&self, packet: &mut PacketBuf) -> Result<(), DropReason> {
        if let Some(quoted) = &self.quoted {
            quoted.apply(packet);
        }
        if let Some(address) = self.src {
            let field = if address.is_ipv4() { Field::Ip4Src } else { Field::Ip6Src };
            set_field(packet, field, bits(address), u128::MAX)?;
        }
        if let Some(address) = self.dst {
            let field = if address.is_ipv4() { Field::Ip4Dst } else { Field::Ip6Dst };
            set_field(packet, field, bits(address), u128::MAX)?;
        }
        if let Some(port) = self.src_port {
            set_field(packet, Field::TpSrc, port.into(), u128::MAX)?;
        }
        if let Some(port) = self.dst_port {
            set_field(packet, Field::TpDst, port.into(), u128::MAX)?;
        }
        if let Some(ident) = self.ident {
            set_icmp_ident(packet, ident);
        }
        Ok(())
    }
}

impl QuotedTranslation {
    fn apply(&self, packet: &mut PacketBuf) {
        let mut set = |field, value| set_quoted_field(packet, field, value);
        if let Some(address) = self.src {
            set(QuotedField::Src, bits(address));
        }
        if let Some(address) = self.dst {
            set(QuotedField::Dst, bits(address));
        }
        if let Some(port) = self.src_port {
            set(QuotedField::SrcPort, port.into());
        }
        if let Some(port) = self.dst_port {
            set(QuotedField::DstPort, port.into());
        }
        if let Some(ident) = self.ident {
            set(QuotedField::IcmpIdent, ident.into());
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
