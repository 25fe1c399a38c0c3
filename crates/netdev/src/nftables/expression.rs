//! What rules consist of.

use crate::attributes::Attributes;

/// Where an expression keeps a value: the number of its first byte. There are 64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register(pub usize);

impl Register {
    /// Four registers of 16 bytes have the numbers 1 to 4; the same bytes as sixteen of 4 have 8 to 23.
    fn from_number(number: u32) -> Option<Self> {
        match number {
            1..=4 => Some(Self((number as usize - 1) * 16)),
            8..=23 => Some(Self((number as usize - 8) * 4)),
            _ => None,
        }
    }
}

/// How two values are compared.
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

/// What becomes of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of nft")]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Return,
    Jump(String),
    Goto(String),
    /// Handed to a program.
    Queue,
}

impl Verdict {
    /// Out of the attributes of a value.
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

/// One step of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expression {
    /// Reads something about the packet (NFT_META_*).
    Meta {
        /// What.
        key: u32,
        /// Where to.
        to: Register,
    },
    /// Reads bytes of the packet.
    Payload {
        /// Of the link layer (0), network layer (1), transport layer (2) or behind it (3).
        base: u32,
        /// From.
        offset: usize,
        /// How many.
        len: usize,
        /// Where to.
        to: Register,
    },
    /// Reads something about the connection (NFT_CT_*).
    Connection {
        /// What.
        key: u32,
        /// Where to.
        to: Register,
    },
    /// Goes on only if a value compares.
    Compare {
        /// Of what.
        from: Register,
        /// How.
        how: Comparison,
        /// With what.
        value: Vec<u8>,
    },
    /// Goes on only if a value is in a range.
    Range {
        /// Of what.
        from: Register,
        /// Only if it is not.
        inverted: bool,
        /// The first one.
        first: Vec<u8>,
        /// The last one.
        last: Vec<u8>,
    },
    /// Combines a value with constants: `(value & mask) ^ xor`.
    Bitwise {
        /// Of what.
        from: Register,
        /// Where to.
        to: Register,
        /// The ones are kept.
        mask: Vec<u8>,
        /// The ones are turned.
        xor: Vec<u8>,
    },
    /// Goes on only if a value is in a set; of a map of verdicts, takes over its verdict.
    Lookup {
        /// Of what.
        from: Register,
        /// The set.
        set: String,
        /// Only if it is not.
        inverted: bool,
    },
    /// Decides.
    Verdict(Verdict),
    /// Drops, and says so to the sender.
    Reject,
    /// Decides nothing, and writes to registers at most what no condition reads: counters, logs, marks.
    Neutral,
    /// Goes on with a packet whose bytes are not what they were.
    Alters,
    /// Goes on with a packet that belongs to no connection.
    Untracked,
    /// Gives the packet another destination, or to somebody else, who may drop it.
    Diverts,
    /// What is not known here: it may go on, or not, and may write to any register.
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
            // One that writes has a source register instead, and decides nothing.
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
            // Of a map of values, what is found goes into a register other than that of verdicts.
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
            // Another sender is no reason to drop; another receiver may be.
            "nat" if data.be32(1)? == 0 => Self::Verdict(Verdict::Accept),
            "masq" => Self::Verdict(Verdict::Accept),
            "nat" | "redir" | "tproxy" | "fwd" | "synproxy" => Self::Diverts,
            "target" => target(&data.text(1)?),
            _ => return None,
        })
    }
}

/// A target of iptables that nft does not say in its own words.
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
    fn expressions_that_decide_elsewhere_are_not_taken_for_conditions() {
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
        // A map of values writes to a register; only one of verdicts decides.
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
