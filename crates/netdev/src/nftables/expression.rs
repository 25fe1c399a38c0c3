//! Expressions: the elements of a rule.

use crate::attributes::Attributes;

/// A register of nftables, by the offset of its first byte in the 64 bytes of registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register(pub usize);

impl Register {
    /// Registers 1 to 4 have 16 bytes. 8 to 23 are the same memory in registers of 4 bytes.
    fn from_number(number: u32) -> Option<Self> {
        match number {
            1..=4 => Some(Self((number as usize - 1) * 16)),
            8..=23 => Some(Self((number as usize - 8) * 4)),
            _ => None,
        }
    }
}

/// A comparison operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A verdict on a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of nft")]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Return,
    Jump(String),
    Goto(String),
    /// Passed to a userspace program.
    Queue,
}

impl Verdict {
    /// Parses the attributes of an immediate value.
    pub(super) fn parse(data: Attributes<'_>) -> Option<Self> {
        let verdict = data.nested(2)?;
        let chain = || verdict.text(2).unwrap_or_default();
        Some(match verdict.be32(1)?.cast_signed() {
            0 => Self::Drop,
            1 => Self::Accept,
            -3 => Self::Jump(chain()),
            -4 => Self::Goto(chain()),
            -5 => Self::Return,
            code if code & 0xff == 3 => Self::Queue,
            // NFT_CONTINUE, NFT_BREAK
            -1 | -2 => Self::Continue,
            _ => return None,
        })
    }
}

/// One expression of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expression {
    /// Loads metadata of the packet (NFT_META_*).
    Meta {
        /// The NFT_META_* key.
        key: u32,
        /// The destination register.
        to: Register,
    },
    /// Loads bytes of the packet.
    Payload {
        /// Link layer (0), network layer (1), transport layer (2) or payload after it (3).
        base: u32,
        /// Offset from there.
        offset: usize,
        /// Number of bytes.
        len: usize,
        /// The destination register.
        to: Register,
    },
    /// Loads metadata of the connection (NFT_CT_*).
    Connection {
        /// The NFT_CT_* key.
        key: u32,
        /// The destination register.
        to: Register,
    },
    /// Continues only if the comparison holds.
    Compare {
        /// The register.
        from: Register,
        /// The operator.
        how: Comparison,
        /// The constant.
        value: Vec<u8>,
    },
    /// Continues only if the value is in a range.
    Range {
        /// The register.
        from: Register,
        /// Continues only if it is *not* in the range.
        inverted: bool,
        /// The first value.
        first: Vec<u8>,
        /// The last value.
        last: Vec<u8>,
    },
    /// Computes `(value & mask) ^ xor`.
    Bitwise {
        /// The source register.
        from: Register,
        /// The destination register.
        to: Register,
        /// The mask.
        mask: Vec<u8>,
        /// The bits to invert.
        xor: Vec<u8>,
    },
    /// Continues only if the value is in a set. A verdict map gives its verdict.
    Lookup {
        /// The register.
        from: Register,
        /// The name of the set.
        set: String,
        /// Continues only if it is *not* in the set.
        inverted: bool,
    },
    /// Gives a verdict.
    Verdict(Verdict),
    /// Drops the packet and reports it to the sender.
    Reject,
    /// Gives no verdict and writes no register that a condition reads: counters, logs, marks.
    Neutral,
    /// Rewrites the packet and continues.
    Alters,
    /// Exempts the packet from connection tracking and continues.
    Untracked,
    /// Rewrites the destination or passes the packet to another receiver, which may drop it.
    Diverts,
    /// An expression that is not decoded: it may continue or not, and write to any register.
    Unknown(String),
}

impl Expression {
    pub(super) fn parse(attributes: Attributes<'_>) -> Self {
        let name = attributes.text(1).unwrap_or_default();
        let data = attributes.nested(2).unwrap_or_default();
        Self::known(&name, data).unwrap_or(Self::Unknown(name))
    }

    fn known(name: &str, data: Attributes<'_>) -> Option<Self> {
        let register = |kind| Register::from_number(data.be32(kind)?);
        let number = |kind| data.be32(kind).map(|number| number as usize);
        let value = |kind| data.nested(kind)?.get(1).map(<[u8]>::to_vec);
        Some(match name {
            // The variant that sets metadata has a source register instead, and gives no verdict.
            "meta" | "ct" if data.get(1).is_none() => Self::Neutral,
            "meta" => Self::Meta { key: data.be32(2)?, to: register(1)? },
            "ct" => Self::Connection { key: data.be32(2)?, to: register(1)? },
            "payload" if data.get(1).is_none() => Self::Alters,
            "payload" => Self::Payload {
                base: data.be32(2)?,
                offset: number(3)?,
                len: number(4)?,
                to: register(1)?,
            },
            "cmp" => Self::Compare {
                from: register(1)?,
                how: comparison(data.be32(2)?)?,
                value: value(3)?,
            },
            "range" => Self::Range {
                from: register(1)?,
                inverted: data.be32(2)? == 1,
                first: value(3)?,
                last: value(4)?,
            },
            "bitwise" if data.be32(6).unwrap_or(0) == 0 => Self::Bitwise {
                from: register(1)?,
                to: register(2)?,
                mask: value(4)?,
                xor: value(5)?,
            },
            // A map of values writes to a register; verdict maps use register 0.
            "lookup" if data.be32(3).unwrap_or(0) == 0 => Self::Lookup {
                from: register(2)?,
                set: data.text(1)?,
                inverted: data.be32(5).unwrap_or(0) & 1 == 1,
            },
            "immediate" => match data.nested(2)?.nested(2) {
                Some(_) => Self::Verdict(Verdict::parse(data.nested(2)?)?),
                None => Self::Neutral,
            },
            "reject" => Self::Reject,
            "queue" => Self::Verdict(Verdict::Queue),
            "counter" | "log" | "last" | "dup" => Self::Neutral,
            "exthdr" if data.get(1).is_none() => Self::Alters,
            "notrack" => Self::Untracked,
            // Source NAT drops nothing; destination NAT changes the receiver.
            "nat" if data.be32(1)? == 0 => Self::Verdict(Verdict::Accept),
            "masq" => Self::Verdict(Verdict::Accept),
            "nat" | "redir" | "tproxy" | "fwd" | "synproxy" => Self::Diverts,
            "target" => target(&data.text(1)?),
            _ => return None,
        })
    }
}

/// An xtables target that `nft` cannot express itself.
fn target(name: &str) -> Expression {
    match name {
        "REJECT" => Expression::Reject,
        "NFQUEUE" => Expression::Verdict(Verdict::Queue),
        "SNAT" | "MASQUERADE" => Expression::Verdict(Verdict::Accept),
        "LOG" | "NFLOG" | "ULOG" | "MARK" | "CONNMARK" | "CLASSIFY" | "TRACE" | "SECMARK"
        | "CONNSECMARK" | "AUDIT" => Expression::Neutral,
        "CT" | "NOTRACK" => Expression::Untracked,
        "TCPMSS" | "TCPOPTSTRIP" | "DSCP" | "TOS" | "TTL" | "HL" | "CHECKSUM" | "ECN" => {
            Expression::Alters
        }
        _ => Expression::Diverts,
    }
}

const fn comparison(number: u32) -> Option<Comparison> {
    Some(match number {
        0 => Comparison::Equal,
        1 => Comparison::NotEqual,
        2 => Comparison::Less,
        3 => Comparison::LessOrEqual,
        4 => Comparison::Greater,
        5 => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::AttributeBuf;

    #[test]
    fn registers_of_both_sizes_name_the_same_bytes() {
        let table = [(1, Some(0)), (2, Some(16)), (8, Some(0)), (9, Some(4)), (23, Some(60))];
        for (number, at) in table {
            assert_eq!(Register::from_number(number).map(|register| register.0), at, "{number}");
        }
        assert!([0, 5, 7, 24].into_iter().all(|n| Register::from_number(n).is_none()));
    }

    #[test]
    fn expressions_with_a_verdict_are_not_taken_for_conditions() {
        let parse = |name: &str, data: &AttributeBuf| {
            let bytes = AttributeBuf::default().text(1, name).nest(2, data).into_bytes();
            Expression::parse(Attributes::new(&bytes))
        };
        let number = |number: u32| AttributeBuf::default().push(1, &number.to_be_bytes());
        assert_eq!(parse("queue", &number(7)), Expression::Verdict(Verdict::Queue));
        assert_eq!(parse("nat", &number(0)), Expression::Verdict(Verdict::Accept));
        assert_eq!(parse("nat", &number(1)), Expression::Diverts);
        for (target, expected) in [
            ("REJECT", Expression::Reject),
            ("CT", Expression::Untracked),
            ("LOG", Expression::Neutral),
            ("TPROXY", Expression::Diverts),
        ] {
            assert_eq!(parse("target", &AttributeBuf::default().text(1, target)), expected);
        }
        // A map of values writes to a register; only a verdict map decides.
        let lookup = |to: u32| {
            let data = AttributeBuf::default().text(1, "s").push(2, &1u32.to_be_bytes());
            parse("lookup", &data.push(3, &to.to_be_bytes()))
        };
        assert!(matches!(lookup(0), Expression::Lookup { .. }));
        assert!(matches!(lookup(1), Expression::Unknown(_)));
    }

    #[test]
    fn expression_is_unknown_when_a_part_is_missing() {
        let data = AttributeBuf::default().push(1, &1u32.to_be_bytes());
        for name in ["meta", "payload", "cmp", "lookup", "range", "fib", "immediate"] {
            let bytes = AttributeBuf::default().text(1, name).nest(2, &data).into_bytes();
            let expected = Expression::Unknown(name.to_owned());
            assert_eq!(Expression::parse(Attributes::new(&bytes)), expected);
        }
    }
}
