//! [`NatSpec`], the NAT of a new connection, and the choice of addresses and ports.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::Tuple;

/// The end of a connection that NAT changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NatKind {
    /// The source of packets in the original direction.
    Source,
    /// The destination of packets in the original direction.
    Destination,
}

/// How a port is chosen if the packet's own port is taken or outside the range.
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
    /// The addresses to choose from, of the packet's family. With `None`, the address stays, and
    /// the port changes only if necessary (all-zero SNAT of Open vSwitch).
    pub addresses: Option<RangeInclusive<IpAddr>>,
    /// The ports or ICMP identifiers to choose from.
    ///
    /// With `None`, source NAT keeps the port if it can. Otherwise it chooses one of the same class
    /// (1 to 511, 600 to 1,023, or 1,024 to 65,535), as Linux does. Destination NAT keeps the port.
    pub ports: Option<RangeInclusive<u16>>,
    /// How to choose a port.
    pub choice: PortChoice,
    /// Choose the address by the source address alone, so that a client always gets the same one,
    /// even after a restart.
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

/// The maximum number of table lookups to find a free port for one connection. A range of ports up
/// to this size is searched completely if there is one address.
const MAX_ATTEMPTS: u32 = 512;
/// The maximum number of addresses of a range that are tried.
const MAX_ADDRESSES: u32 = 4;
/// Consecutive ports that are tried before a jump to another part of a large range.
const RUN: u32 = 64;

/// Numbers that an attacker cannot predict, because they depend on the secret seed of the table.
pub(crate) struct Choices {
    /// A hash of source address and range.
    pub by_source: u64,
    /// A hash of the tuple and range.
    pub by_tuple: u64,
    /// A random number that is new for each connection.
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
    let addresses = Addresses::new(original, spec, choices)?;
    let attempts = MAX_ATTEMPTS / addresses.tried;
    (0..addresses.tried).find_map(|number| {
        let moved = addresses.move_to(original, spec.kind, number);
        let search = Search { choices, choice: spec.choice, attempts };
        match spec.kind {
            NatKind::Source => search.source(&moved, &spec.ports, &mut is_free),
            NatKind::Destination => search.destination(&moved, &spec.ports, &mut is_free),
        }
    })
}

/// The addresses to try.
struct Addresses {
    first: u128,
    span: u128,
    /// The first address to try, as an offset from `first`.
    offset: u128,
    tried: u32,
}

impl Addresses {
    /// `None` when the range is empty or of another address family than the packet.
    fn new(original: &Tuple, spec: &NatSpec, choices: &Choices) -> Option<Self> {
        let own = match spec.kind {
            NatKind::Source => original.src_bits(),
            NatKind::Destination => original.dst_bits(),
        };
        let Some(range) = &spec.addresses else {
            return Some(Self { first: own, span: 0, offset: 0, tried: 1 });
        };
        let (first, last) = match (*range.start(), *range.end()) {
            (IpAddr::V4(first), IpAddr::V4(last)) if original.is_v4() => {
                (first.to_bits().into(), last.to_bits().into())
            }
            (IpAddr::V6(first), IpAddr::V6(last)) if !original.is_v4() => {
                (first.to_bits(), last.to_bits())
            }
            _ => return None,
        };
        let span = u128::checked_sub(last, first)?;
        let keeps = spec.kind == NatKind::Source
            && spec.choice == PortChoice::Hash
            && (first..=last).contains(&own);
        let offset = match (keeps, spec.persistent) {
            (true, _) => own - first,
            (false, true) => scaled(choices.by_source, span),
            (false, false) => scaled(choices.by_tuple, span),
        };
        let tried = if spec.persistent { 1 } else { span.min(MAX_ADDRESSES.into()) as u32 + 1 };
        Some(Self { first, span, offset, tried: tried.min(MAX_ADDRESSES) })
    }

    fn move_to(&self, original: &Tuple, kind: NatKind, number: u32) -> Tuple {
        let number = u128::from(number);
        // After the last address, the search continues at the first.
        let left = self.span - self.offset;
        let offset = if number <= left { self.offset + number } else { number - left - 1 };
        let address = self.first + offset;
        match kind {
            NatKind::Source => original.with_src(address),
            NatKind::Destination => original.with_dst(address),
        }
    }
}

/// Maps `hash` evenly to a number from 0 to `span`.
fn scaled(hash: u64, span: u128) -> u128 {
    match span.checked_add(1) {
        Some(count) if count <= 1 << 64 => (u128::from(hash) * count) >> 64,
        _ => u128::from(hash),
    }
}

/// The ports that source NAT chooses from when the specification has none. The classes exist
/// because servers give different trust to ports below 512 and below 1,024.
const fn class_of(port: u16) -> (u16, u16) {
    match port {
        0..512 => (1, 511),
        512..1024 => (600, 1023),
        1024.. => (1024, u16::MAX),
    }
}

/// The search for a free port.
struct Search<'a> {
    choices: &'a Choices,
    choice: PortChoice,
    attempts: u32,
}

type Ports = Option<RangeInclusive<u16>>;

impl Search<'_> {
    fn source(
        &self,
        tuple: &Tuple,
        ports: &Ports,
        is_free: &mut impl FnMut(&Tuple, u32) -> bool,
    ) -> Option<Tuple> {
        let (own, second) = tuple.parts();
        let is_icmp = tuple.is_icmp();
        if !is_icmp && !tuple.has_ports() {
            return is_free(tuple, self.attempts).then_some(*tuple);
        }
        let (first, last) = match ports {
            Some(ports) => (*ports.start(), *ports.end()),
            None if is_icmp => (0, u16::MAX),
            None => class_of(own),
        };
        let is_in_range = ports.is_none() || (first..=last).contains(&own);
        if self.choice == PortChoice::Hash && is_in_range && is_free(tuple, self.attempts) {
            return Some(*tuple);
        }
        self.run((first, last), |port, left| {
            let tuple = tuple.with_parts(port, second);
            is_free(&tuple, left).then_some(tuple)
        })
    }

    /// Two clients may have the same address and port after an earlier source NAT. Therefore, if no
    /// destination port is free, the source port is changed as in source NAT.
    fn destination(
        &self,
        tuple: &Tuple,
        ports: &Ports,
        is_free: &mut impl FnMut(&Tuple, u32) -> bool,
    ) -> Option<Tuple> {
        let (src, own) = tuple.parts();
        let mut tuple = *tuple;
        if let Some(ports) = ports.as_ref().filter(|_| tuple.has_ports()) {
            let is_in_range = self.choice == PortChoice::Hash && ports.contains(&own);
            if is_in_range && is_free(&tuple, self.attempts) {
                return Some(tuple);
            }
            let found = self.run((*ports.start(), *ports.end()), |port, left| {
                let tuple = tuple.with_parts(src, port);
                is_free(&tuple, left).then_some(tuple)
            });
            if found.is_some() {
                return found;
            }
            tuple = tuple.with_parts(src, *ports.start());
        }
        let keep_if_free = Self { choice: PortChoice::Hash, ..*self };
        keep_if_free.source(&tuple, &None, is_free)
    }

    /// Tries ports of the range, in runs of consecutive ports that begin at random ones.
    fn run(
        &self,
        (first, last): (u16, u16),
        mut is_free: impl FnMut(u16, u32) -> Option<Tuple>,
    ) -> Option<Tuple> {
        let count = u32::from(last.checked_sub(first)?) + 1;
        let mut random = match self.choice {
            PortChoice::Hash => self.choices.by_tuple,
            PortChoice::Random => self.choices.random,
        };
        let attempts = count.min(self.attempts);
        let run = if count <= self.attempts { count } else { RUN };
        for attempt in 0..attempts {
            if attempt > 0 && attempt % run == 0 {
                random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            }
            // The result is less than `count`, which has at most 17 bits.
            let start = (((random >> 32) * u64::from(count)) >> 32) as u32;
            let port = u32::from(first) + (start + attempt % run) % count;
            if let Some(tuple) = is_free(port as u16, attempts - 1 - attempt) {
                return Some(tuple);
            }
        }
        None
    }
}
