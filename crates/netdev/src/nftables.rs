//! Reads the nftables ruleset.
//!
//! It includes the rules of iptables-nft. Reading needs CAP_NET_ADMIN.

mod expression;

pub use expression::{Comparison, Expression, Register, Verdict};

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::attributes::{AttributeBuf, Attributes};
use crate::request::{RawMessage, Requester};
use crate::{Error, Result};

const SUBSYSTEM: u16 = 10 << 8;
const GET_TABLE: u16 = 1;
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const GET_SET: u16 = 10;
const GET_ELEMENTS: u16 = 13;
/// `struct nfgenmsg`: family, version, resource.
const HEADER_BYTES: usize = 4;

/// The address family of a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TableFamily {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Frames of one device, at its ingress or egress hook.
    Netdev,
    /// Frames that pass or end at a Linux bridge.
    Bridge,
    /// ARP and unknown families.
    Other(u8),
}

impl TableFamily {
    const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Inet,
            2 => Self::Ip,
            10 => Self::Ip6,
            5 => Self::Netdev,
            7 => Self::Bridge,
            other => Self::Other(other),
        }
    }

    /// Its number (NFPROTO_*), the value of `meta nfproto`.
    pub const fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Ip6 => 10,
            Self::Netdev => 5,
            Self::Bridge => 7,
            Self::Other(other) => other,
        }
    }

    /// Its name in `nft`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
            Self::Other(3) => "arp",
            Self::Other(_) => "unknown",
        }
    }
}

/// The hook of a base chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hook {
    /// NF_INET_PRE_ROUTING (0), LOCAL_IN (1), FORWARD (2), LOCAL_OUT (3), POST_ROUTING (4), INGRESS
    /// (5); for `netdev`: ingress (0), egress (1).
    pub number: u32,
    /// Chains of lower priority come first.
    pub priority: i32,
    /// The devices of the chain, `eth*` for a prefix; empty for all devices.
    pub devices: Vec<String>,
}

/// A chain of rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The family of its table.
    pub family: TableFamily,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// The hook of a base chain; `None` for a regular chain, which other chains jump to.
    pub hook: Option<Hook>,
    /// The policy of a base chain is `drop`, not `accept`.
    pub drops: bool,
}

/// A rule: a list of expressions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The family of its table.
    pub family: TableFamily,
    /// Its table.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// Its handle, unique in the table.
    pub handle: u64,
    /// Its expressions.
    pub expressions: Vec<Expression>,
}

/// A set of values, or a map from values to verdicts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Set {
    /// The family of its table.
    pub family: TableFamily,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Elements come in pairs: the first value of a range, and the first value after it.
    pub is_interval: bool,
    /// Values consist of several fields.
    pub is_concatenation: bool,
    /// The length of each field in bytes; each field starts at a multiple of four.
    pub field_lens: Vec<usize>,
    /// Its elements, as the kernel lists them.
    pub elements: Vec<Element>,
}

/// An element of a set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Element {
    /// The value; empty for the catch-all element.
    pub key: Vec<u8>,
    /// The last value of a range, where the set does not use pairs.
    pub key_end: Option<Vec<u8>>,
    /// It is the first value after a range.
    pub ends_interval: bool,
    /// It matches everything that no other element matches.
    pub is_catch_all: bool,
    /// The verdict, in a verdict map.
    pub verdict: Option<Verdict>,
}

/// The ruleset of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ruleset {
    /// The chains.
    pub chains: Vec<Chain>,
    /// The rules, in the order of their chains.
    pub rules: Vec<Rule>,
    /// The sets, including anonymous ones.
    pub sets: Vec<Set>,
}

impl Ruleset {
    /// Reads the ruleset of the calling thread's namespace, without dormant tables. It is empty on
    /// a kernel without nftables.
    ///
    /// # Errors
    /// [`Error::is_permission`] without CAP_NET_ADMIN. [`Error::Malformed`] when an object cannot
    /// be decoded: an incomplete ruleset would be misleading.
    pub fn read() -> Result<Self> {
        let socket = match Requester::open(NETLINK_NETFILTER) {
            Err(error) if error.errno() == Some(libc::EPROTONOSUPPORT) => {
                return Ok(Self::default());
            }
            opened => Socket(opened?),
        };
        let asleep = match socket.all("list tables", GET_TABLE, table) {
            // netfilter answers EINVAL for a subsystem that the kernel lacks.
            Err(error) if error.errno() == Some(libc::EINVAL) => return Ok(Self::default()),
            tables => tables?,
        };
        let awake = |family, table: &str| {
            !asleep.iter().any(|known| known.2 && known.0 == family && known.1 == table)
        };
        let mut chains = socket.all("list chains", GET_CHAIN, chain)?;
        chains.retain(|chain| awake(chain.family, &chain.table));
        let mut rules = socket.all("list rules", GET_RULE, rule)?;
        rules.retain(|rule| awake(rule.family, &rule.table));
        let mut sets = socket.all("list sets", GET_SET, set)?;
        sets.retain(|set| awake(set.family, &set.table));
        for set in &mut sets {
            set.elements = socket.elements(set)?;
        }
        Ok(Self { chains, rules, sets })
    }
}

struct Socket(Requester);

impl Socket {
    /// Lists all objects of a kind; `parse` decodes family and attributes of each.
    fn all<T>(
        &self,
        what: &'static str,
        kind: u16,
        parse: impl Fn(TableFamily, Attributes<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let answers = self.ask(what, kind, TableFamily::Other(0), AttributeBuf::default())?;
        let parsed = answers.iter().map(|answer| {
            parse(
                TableFamily::from_number(*answer.first()?),
                Attributes::new(answer.get(HEADER_BYTES..)?),
            )
        });
        parsed.collect::<Option<_>>().ok_or_else(|| Error::malformed(what, "one without its name"))
    }

    fn ask(
        &self,
        what: &str,
        kind: u16,
        family: TableFamily,
        attributes: AttributeBuf,
    ) -> Result<Vec<Vec<u8>>> {
        let mut payload = vec![family.number(), 0, 0, 0];
        payload.extend(attributes.into_bytes());
        let request = RawMessage { kind: SUBSYSTEM | kind, payload };
        Ok(self.0.dump(what, request)?.into_iter().map(|answer| answer.payload).collect())
    }

    fn elements(&self, set: &Set) -> Result<Vec<Element>> {
        const LIST: u16 = 3;
        const LIST_ELEMENT: u16 = 1;
        let which = AttributeBuf::default().text(1, &set.table).text(2, &set.name);
        let what = format!("list the elements of set {}", set.name);
        let answers = self.ask(&what, GET_ELEMENTS, set.family, which)?;
        let mut elements = Vec::new();
        for answer in answers {
            let attributes = Attributes::new(answer.get(HEADER_BYTES..).unwrap_or_default());
            let list = attributes.nested(LIST).unwrap_or_default();
            elements.extend(list.all(LIST_ELEMENT).map(element));
        }
        Ok(elements)
    }
}

/// The family and name of a table, and whether it is dormant.
fn table(family: TableFamily, attributes: Attributes<'_>) -> Option<(TableFamily, String, bool)> {
    const ASLEEP: u32 = 1;
    Some((family, attributes.text(1)?, attributes.be32(2).unwrap_or(0) & ASLEEP != 0))
}

fn chain(family: TableFamily, attributes: Attributes<'_>) -> Option<Chain> {
    const DROP: u32 = 0;
    /// A device name of which only the prefix counts (Linux 6.16).
    const PREFIX: u16 = 2;
    let hook = attributes.nested(4).and_then(|hook| {
        let mut devices: Vec<_> = hook.text(3).into_iter().collect();
        let names = hook.nested(4).unwrap_or_default();
        devices.extend(names.iter().map(|(kind, name)| {
            let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let rest = if kind == PREFIX { "*" } else { "" };
            format!("{}{rest}", String::from_utf8_lossy(text))
        }));
        devices.dedup();
        let priority = hook.be32(2)?.cast_signed();
        Some(Hook { number: hook.be32(1)?, priority, devices })
    });
    Some(Chain {
        family,
        table: attributes.text(1)?,
        name: attributes.text(3)?,
        drops: hook.is_some() && attributes.be32(5) == Some(DROP),
        hook,
    })
}

fn rule(family: TableFamily, attributes: Attributes<'_>) -> Option<Rule> {
    let handle = attributes.get(3).and_then(|bytes| bytes.try_into().ok());
    let list = attributes.nested(4).unwrap_or_default();
    Some(Rule {
        family,
        table: attributes.text(1)?,
        chain: attributes.text(2)?,
        handle: handle.map_or(0, u64::from_be_bytes),
        expressions: list.all(1).map(Expression::parse).collect(),
    })
}

fn set(family: TableFamily, attributes: Attributes<'_>) -> Option<Set> {
    const INTERVAL: u32 = 0x4;
    const CONCATENATION: u32 = 0x80;
    let flags = attributes.be32(3).unwrap_or(0);
    let fields = attributes.nested(9).and_then(|size| size.nested(2)).unwrap_or_default();
    Some(Set {
        family,
        table: attributes.text(1)?,
        name: attributes.text(2)?,
        is_interval: flags & INTERVAL != 0,
        is_concatenation: flags & CONCATENATION != 0,
        field_lens: fields.all(1).filter_map(|field| Some(field.be32(1)? as usize)).collect(),
        elements: Vec::new(),
    })
}

fn element(attributes: Attributes<'_>) -> Element {
    const ENDS_INTERVAL: u32 = 1;
    const CATCH_ALL: u32 = 2;
    let flags = attributes.be32(3).unwrap_or(0);
    let value = |kind| attributes.nested(kind)?.get(1).map(<[u8]>::to_vec);
    Element {
        key: value(1).unwrap_or_default(),
        key_end: value(10),
        ends_interval: flags & ENDS_INTERVAL != 0,
        is_catch_all: flags & CATCH_ALL != 0,
        verdict: attributes.nested(2).and_then(Verdict::parse),
    }
}
