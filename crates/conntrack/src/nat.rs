//! [`NatSpec`], which NAT a new connection gets, and the choice of addresses and ports.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::Tuple;

/// Which end of a connection NAT changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NatKind {
    /// The source of packets in the original direction.
    Source,
    /// The destination of packets in the original direction.
    Destination,
}

/// How a port is chosen where the packet's own is taken or outside the range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PortChoice {
    /// By a seeded hash of the tuple: the same connection gets the same port again.
    #[default]
    Hash,
    /// At random, and without trying the packet's own port first.
    Random,
}

/// The NAT of a new connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NatSpec {
    /// The end that changes.
    pub kind: NatKind,
    /// The addresses to choose from, of the packet's family. With `None` the address stays, and
    /// only the port changes, if it must (all-zero SNAT of Open vSwitch).
    pub addresses: Option<RangeInclusive<IpAddr>>,
    /// The ports or ICMP identifiers to choose from.
    ///
    /// With `None`, source NAT keeps the port if it can. Otherwise it chooses one of the same class
    /// (1 to 511, 600 to 1,023, or 1,024 to 65,535), as Linux does. Destination NAT keeps the port.
    pub ports: Option<RangeInclusive<u16>>,
    /// How to choose a port.
    pub choice: PortChoice,
    /// Choose the address by the source address alone, so that a client always gets the same one,
    /// also after a restart.
    pub persistent: bool,
}

impl NatSpec {
    /// Source NAT to one address.
    pub fn source(address: IpAddr) -> Self {
        Self::new(NatKind::Source, Some(address..=address), None)
    }

    /// Destination NAT to one address, and to one port unless `port` is `None`.
    pub fn destination(address: IpAddr, port: Option<u16>) -> Self {
        let ports = port.map(|port| port..=port);
        Self::new(NatKind::Destination, Some(address..=address), ports)
    }

    /// NAT to a range of addresses and ports.
    pub const fn new(
        kind: NatKind,
        addresses: Option<RangeInclusive<IpAddr>>,
        ports: Option<RangeInclusive<u16>>,
    ) -> Self {
        Self { kind, addresses, ports, choice: PortChoice::Hash, persistent: false }
    }
}

/// Table look-ups to find a free port for one connection. A range up to this size is searched
/// completely.
pub(crate) const MAX_ATTEMPTS: u32 = 512;
/// Consecutive ports that are tried before a jump to another part of a large range.
const RUN: u32 = 64;

/// Random numbers that an attacker cannot predict, from the seed of the table.
pub(crate) struct Choices {
    /// A hash of source address and range.
    pub by_source: u64,
    /// A hash of the tuple and range.
    pub by_tuple: u64,
    /// A number that is new each time.
    pub random: u64,
}

/// Chooses the tuple that the packet has after NAT. `is_free` tells whether no connection uses a
/// candidate; its second argument is the number of candidates left. `None` when no free tuple was
/// found.
pub(crate) fn choose(
    original: &Tuple,
    spec: &NatSpec,
    choices: &Choices,
    mut is_free: impl FnMut(&Tuple, u32) -> bool,
) -> Option<Tuple> {
    let moved = with_address(original, spec, choices)?;
    match spec.kind {
        NatKind::Source => choose_source_port(&moved, spec, choices, &mut is_free),
        NatKind::Destination => {
            let any = choose_destination_port(&moved, spec, choices, &mut is_free);
            // Two clients may use the same port and address after an earlier source NAT, so a
            // collision is resolved as in source NAT.
            any.or_else(|| {
                let keep = NatSpec::new(NatKind::Source, None, None);
                let first = spec.ports.as_ref().map(|ports| *ports.start());
                let (src, dst) = moved.parts();
                let moved = match first.filter(|_| moved.has_ports()) {
                    Some(port) => moved.with_parts(src, port),
                    None => moved.with_parts(src, dst),
                };
                choose_source_port(&moved, &keep, choices, &mut is_free)
            })
        }
    }
}

/// `None` when the range is of another family than the packet, or empty.
fn with_address(original: &Tuple, spec: &NatSpec, choices: &Choices) -> Option<Tuple> {
    let Some(range) = &spec.addresses else { return Some(*original) };
    let (first, last) = match (*range.start(), *range.end()) {
        (IpAddr::V4(first), IpAddr::V4(last)) if original.is_v4() => {
            (first.to_bits().into(), last.to_bits().into())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if !original.is_v4() => {
            (first.to_bits(), last.to_bits())
        }
        _ => return None,
    };
    let span: u128 = u128::checked_sub(last, first)?;
    let own = match spec.kind {
        NatKind::Source => original.src_bits(),
        NatKind::Destination => original.dst_bits(),
    };
    let is_in_range = (first..=last).contains(&own) && spec.choice == PortChoice::Hash;
    let address = if is_in_range && spec.kind == NatKind::Source {
        own
    } else {
        let hash = if spec.persistent { choices.by_source } else { choices.by_tuple };
        first + scaled(hash, span)
    };
    Some(match spec.kind {
        NatKind::Source => original.with_src(address),
        NatKind::Destination => original.with_dst(address),
    })
}

/// A number from 0 to `span`, evenly chosen by `hash`.
fn scaled(hash: u64, span: u128) -> u128 {
    match span.checked_add(1) {
        Some(count) if count <= 1 << 64 => (u128::from(hash) * count) >> 64,
        _ => u128::from(hash),
    }
}

/// The ports that source NAT chooses from when the specification has none. Servers trust ports
/// below 512 and below 1,024 differently.
const fn class_of(port: u16) -> (u16, u16) {
    match port {
        0..512 => (1, 511),
        512..1024 => (600, 1023),
        1024.. => (1024, u16::MAX),
    }
}

fn choose_source_port(
    tuple: &Tuple,
    spec: &NatSpec,
    choices: &Choices,
    is_free: &mut impl FnMut(&Tuple, u32) -> bool,
) -> Option<Tuple> {
    let (own, second) = tuple.parts();
    let is_icmp = tuple.is_icmp();
    if !is_icmp && !tuple.has_ports() {
        return is_free(tuple, 0).then_some(*tuple);
    }
    let (first, last) = match &spec.ports {
        Some(ports) => (*ports.start(), *ports.end()),
        None if is_icmp => (0, u16::MAX),
        None => class_of(own),
    };
    let suits = spec.ports.is_none() || (first..=last).contains(&own);
    if spec.choice == PortChoice::Hash && suits && is_free(tuple, MAX_ATTEMPTS) {
        return Some(*tuple);
    }
    let candidate = |port| tuple.with_parts(port, second);
    search((first, last), choices, spec.choice, |port, left| {
        let tuple = candidate(port);
        is_free(&tuple, left).then_some(tuple)
    })
}

fn choose_destination_port(
    tuple: &Tuple,
    spec: &NatSpec,
    choices: &Choices,
    is_free: &mut impl FnMut(&Tuple, u32) -> bool,
) -> Option<Tuple> {
    let Some(ports) = spec.ports.as_ref().filter(|_| tuple.has_ports()) else {
        return is_free(tuple, MAX_ATTEMPTS).then_some(*tuple);
    };
    let (src, own) = tuple.parts();
    if spec.choice == PortChoice::Hash && ports.contains(&own) && is_free(tuple, MAX_ATTEMPTS) {
        return Some(*tuple);
    }
    search((*ports.start(), *ports.end()), choices, spec.choice, |port, left| {
        let tuple = tuple.with_parts(src, port);
        is_free(&tuple, left).then_some(tuple)
    })
}

/// Tries ports of the range: from a random one on, in runs of consecutive ports.
fn search(
    (first, last): (u16, u16),
    choices: &Choices,
    choice: PortChoice,
    mut is_free: impl FnMut(u16, u32) -> Option<Tuple>,
) -> Option<Tuple> {
    let count = u32::from(last.checked_sub(first)?) + 1;
    let mut random = match choice {
        PortChoice::Hash => choices.by_tuple,
        PortChoice::Random => choices.random,
    };
    let attempts = count.min(MAX_ATTEMPTS);
    let run = if count <= MAX_ATTEMPTS { count } else { RUN };
    for attempt in 0..attempts {
        if attempt > 0 && attempt % run == 0 {
            random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        }
        // Below `count`, which has at most 17 bits.
        let start = (((random >> 32) * u64::from(count)) >> 32) as u32;
        let port = u32::from(first) + (start + attempt % run) % count;
        if let Some(tuple) = is_free(port as u16, attempts - 1 - attempt) {
            return Some(tuple);
        }
    }
    None
}
