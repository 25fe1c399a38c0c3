//! Reassembly of IP datagrams from fragments (RFC 791 section 3.2, RFC 8200 section 4.5), and
//! fragmenting them again.
//!
//! Connection tracking needs the transport header, which only the first fragment has. So a switch
//! holds fragments until the datagram is complete, tracks it whole, and sends it in fragments again
//! ([`refragment`]): no receiver sees longer packets than the sender has sent.
//!
//! Fragments that overlap end their datagram (RFC 5722). One that repeats another is ignored. The
//! memory of all fragments and of those of one source is limited, and so is the time.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use wire::{Fragment, Ipv4Packet, Ipv6Packet, Located, ipv6};

use crate::buf::PacketBuf;
use crate::checksum::copy_range;
use crate::fragment::{FragmentError, Fragmenter};

/// How long fragments are held, in milliseconds; as long as Linux holds them.
pub const HOLD_MS: u64 = 30_000;
/// The most bytes of fragments that are held.
const MAX_BYTES: usize = 4 << 20;
/// The most bytes of fragments from one source. It must also leave at least as many bytes free for
/// other sources as it uses.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// The most fragments of a datagram. A datagram of 64 KiB has fewer on any link.
const MAX_PIECES: usize = 128;
/// The memory that a fragment needs in addition to its bytes.
const PIECE_BYTES: usize = 256;
/// The longest IP packet, and the longest payload of one.
const MAX_LEN: usize = 65_535;
const CONGESTION_EXPERIENCED: u8 = 3;
const FRAGMENT_HEADER: u8 = 44;

/// How a datagram was fragmented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refragment {
    /// The length of the longest fragment in bytes, IP header included.
    pub mtu: u16,
    v6: Option<FragmentHeader>,
}

/// The fragment header of IPv6, which a reassembled datagram lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FragmentHeader {
    /// Where it was, from the start of the IP header.
    at: u16,
    /// The byte that named it, from the start of the IP header.
    named_at: u16,
    ident: [u8; 4],
}

/// Where a fragment came from. Only fragments with the same context are joined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FragmentContext {
    /// The source of the fragment, such as its port. The memory of each source is limited.
    pub source: u32,
    /// A number such as a connection tracking zone. Fragments with different numbers are never
    /// joined.
    pub zone: u16,
}

/// Why fragments are dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FragmentDrop {
    /// A length or an offset is invalid.
    Malformed,
    /// The fragment overlaps or repeats another one.
    Overlap,
    /// The datagram was not complete in time.
    Expired,
    /// The memory for held fragments is used up.
    Memory,
}

/// The result of [`IpReassembler::push`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FragmentProgress {
    /// The packet is not a fragment, or cannot be reassembled. It is unchanged.
    Whole,
    /// The fragment is held until more arrive.
    Held,
    /// The fragment completed its datagram. The packet is now the datagram, and
    /// [`PacketBuf::refragment`] says how to fragment it again.
    Complete,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    context: FragmentContext,
    src: [u8; 16],
    dst: [u8; 16],
    ident: [u8; 4],
    /// The protocol of IPv4; `None` for IPv6.
    protocol: Option<u8>,
}

/// A fragment in its frame.
struct Piece {
    key: Key,
    /// The headers in front of the payload, without a fragment header.
    head: Range<usize>,
    payload: Range<usize>,
    /// The offset of the payload in the datagram.
    offset: usize,
    is_last: bool,
    header: Option<FragmentHeader>,
    /// The protocol behind the fragment header of IPv6.
    next_header: u8,
    has_congestion: bool,
    len: u16,
}

#[derive(Debug, Default)]
struct Datagram {
    /// Payloads by their offsets.
    pieces: BTreeMap<usize, Vec<u8>>,
    /// The headers of the first fragment.
    head: Vec<u8>,
    header: Option<FragmentHeader>,
    next_header: u8,
    l3: usize,
    /// The length of the payload, once the last fragment is there.
    end: Option<usize>,
    payload_bytes: usize,
    mtu: u16,
    has_congestion: bool,
    deadline_ms: u64,
}

/// Holds fragments until their datagrams are complete.
#[derive(Debug, Default)]
pub struct IpReassembler {
    datagrams: HashMap<Key, Datagram>,
    bytes: usize,
    by_source: HashMap<u32, usize>,
    lost: BTreeMap<(u32, FragmentDrop), u64>,
}

impl IpReassembler {
    /// Holds a fragment, or completes its datagram with it.
    ///
    /// # Errors
    /// The fragment is dropped, and perhaps others with it: see [`IpReassembler::take_dropped`].
    pub fn push(
        &mut self,
        context: FragmentContext,
        packet: &mut PacketBuf,
        now_ms: u64,
    ) -> Result<FragmentProgress, FragmentDrop> {
        let Ok(at) = packet.located() else { return Ok(FragmentProgress::Whole) };
        if at.fragment == Fragment::Whole || at.has_snap() {
            return Ok(FragmentProgress::Whole);
        }
        packet.linearize();
        let frame = packet.head();
        let piece = Piece::parse(frame, &at, context).ok_or(FragmentDrop::Malformed)?;
        let cost = piece.payload.len() + PIECE_BYTES;
        let of_source = self.by_source.get(&context.source).copied().unwrap_or(0);
        let free = MAX_BYTES.saturating_sub(self.bytes);
        let most = MAX_SOURCE_BYTES.min(free.saturating_sub(cost));
        if cost > free || of_source + cost > most {
            return Err(FragmentDrop::Memory);
        }
        let datagram = self.datagrams.entry(piece.key.clone()).or_insert_with(|| Datagram {
            deadline_ms: now_ms.saturating_add(HOLD_MS),
            ..Datagram::default()
        });
        match datagram.check(frame, &piece) {
            Err(Refusal::Fragment(reason)) => return Err(reason),
            Err(Refusal::Datagram(reason)) => {
                self.drop_datagram(&piece.key, reason);
                return Err(reason);
            }
            Ok(()) => {}
        }
        datagram.add(frame, &piece, at.l3);
        self.bytes += cost;
        *self.by_source.entry(context.source).or_default() += cost;
        if !self.datagrams.get(&piece.key).is_some_and(Datagram::is_complete) {
            return Ok(FragmentProgress::Held);
        }
        let Some(datagram) = self.remove(&piece.key) else { return Ok(FragmentProgress::Held) };
        match datagram.finish(packet) {
            Some(()) => Ok(FragmentProgress::Complete),
            None => {
                let others = datagram.pieces.len().saturating_sub(1) as u64;
                self.count(context.source, FragmentDrop::Malformed, others);
                Err(FragmentDrop::Malformed)
            }
        }
    }

    /// Drops the fragments that were held too long.
    pub fn expire(&mut self, now_ms: u64) {
        let over = self.datagrams.iter().filter(|(_, datagram)| datagram.deadline_ms <= now_ms);
        let over: Vec<Key> = over.map(|(key, _)| key.clone()).collect();
        over.iter().for_each(|key| self.drop_datagram(key, FragmentDrop::Expired));
    }

    /// The numbers of held fragments that were dropped since the last call, by source and reason.
    pub fn take_dropped(&mut self) -> impl Iterator<Item = (u32, FragmentDrop, u64)> {
        let lost = std::mem::take(&mut self.lost).into_iter();
        lost.map(|((source, reason), count)| (source, reason, count))
    }

    /// True if there is nothing to expire or to report.
    pub fn is_idle(&self) -> bool {
        self.datagrams.is_empty() && self.lost.is_empty()
    }

    fn drop_datagram(&mut self, key: &Key, reason: FragmentDrop) {
        if let Some(datagram) = self.remove(key) {
            self.count(key.context.source, reason, datagram.pieces.len() as u64);
        }
    }

    fn count(&mut self, source: u32, reason: FragmentDrop, count: u64) {
        if count > 0 {
            *self.lost.entry((source, reason)).or_default() += count;
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Datagram> {
        let datagram = self.datagrams.remove(key)?;
        let cost = datagram.payload_bytes + datagram.pieces.len() * PIECE_BYTES;
        self.bytes = self.bytes.saturating_sub(cost);
        if let Some(bytes) = self.by_source.get_mut(&key.context.source) {
            *bytes = bytes.saturating_sub(cost);
            if *bytes == 0 {
                self.by_source.remove(&key.context.source);
            }
        }
        Some(datagram)
    }
}

/// Whether only a fragment that cannot be added is dropped, or its whole datagram.
enum Refusal {
    Fragment(FragmentDrop),
    Datagram(FragmentDrop),
}

impl Piece {
    fn parse(frame: &[u8], at: &Located, context: FragmentContext) -> Option<Self> {
        let ip = frame.get(at.l3..at.l3_end)?;
        let piece = match ip.first()? >> 4 {
            4 => Self::parse_v4(ip, at, context)?,
            _ => Self::parse_v6(ip, at, context)?,
        };
        let len = piece.payload.len();
        let is_possible =
            len > 0 && piece.offset + len <= MAX_LEN && (piece.is_last || len.is_multiple_of(8));
        is_possible.then_some(piece)
    }

    fn parse_v4(bytes: &[u8], at: &Located, context: FragmentContext) -> Option<Self> {
        let ip = Ipv4Packet::new_header(bytes).ok()?;
        let [high, low] = ip.ident().to_be_bytes();
        let payload = at.l3 + ip.header_len()..at.l3_end;
        let key = Key {
            context,
            src: ip.src().to_ipv6_mapped().octets(),
            dst: ip.dst().to_ipv6_mapped().octets(),
            ident: [0, 0, high, low],
            protocol: Some(ip.protocol().0),
        };
        Some(Self {
            key,
            head: 0..payload.start,
            payload,
            offset: ip.fragment_offset_bytes().into(),
            is_last: !ip.more_fragments(),
            header: None,
            next_header: 0,
            has_congestion: ip.tos() & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED,
            len: u16::try_from(bytes.len()).ok()?,
        })
    }

    fn parse_v6(bytes: &[u8], at: &Located, context: FragmentContext) -> Option<Self> {
        let ip = Ipv6Packet::new_header(bytes).ok()?;
        let (place, named_at) = fragment_header(bytes)?;
        let &[next_header, _, high, low, a, b, c, d] = bytes.get(place..)?.first_chunk()?;
        let offset = u16::from_be_bytes([high, low]);
        let header = FragmentHeader {
            at: u16::try_from(place).ok()?,
            named_at: u16::try_from(named_at).ok()?,
            ident: [a, b, c, d],
        };
        let (src, dst) = (ip.src().octets(), ip.dst().octets());
        let key = Key { context, src, dst, ident: header.ident, protocol: None };
        let start = at.l3 + place + ipv6::FRAGMENT_HEADER_LEN;
        Some(Self {
            key,
            head: 0..at.l3 + place,
            payload: start.min(at.l3_end)..at.l3_end,
            offset: usize::from(offset & !7),
            is_last: offset & 1 == 0,
            header: Some(header),
            next_header,
            has_congestion: ip.traffic_class() & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED,
            len: u16::try_from(bytes.len()).ok()?,
        })
    }
}

/// Where the fragment header of an IPv6 packet is, and the byte that names it.
fn fragment_header(ip: &[u8]) -> Option<(usize, usize)> {
    const NEXT_HEADER: usize = 6;
    let (mut at, mut named_at) = (ipv6::HEADER_LEN, NEXT_HEADER);
    for _ in 0..=ipv6::MAX_EXTENSION_HEADERS {
        match ip.get(named_at)? {
            &FRAGMENT_HEADER => return Some((at, named_at)),
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => {
                let units = usize::from(*ip.get(at + 1)?) + 1;
                (named_at, at) = (at, at + units * 8);
            }
            _ => return None,
        }
    }
    None
}

impl Datagram {
    fn check(&self, frame: &[u8], piece: &Piece) -> Result<(), Refusal> {
        let end = piece.offset + piece.payload.len();
        if let Some(same) = self.pieces.get(&piece.offset)
            && frame.get(piece.payload.clone()) == Some(same)
        {
            return Err(Refusal::Fragment(FragmentDrop::Overlap));
        }
        if self.pieces.len() >= MAX_PIECES {
            return Err(Refusal::Datagram(FragmentDrop::Memory));
        }
        let before = self.pieces.range(..=piece.offset).next_back();
        let overlaps_before =
            before.is_some_and(|(offset, bytes)| offset + bytes.len() > piece.offset);
        let overlaps_after =
            self.pieces.range(piece.offset..).next().is_some_and(|(offset, _)| *offset < end);
        let last = self.pieces.last_key_value().map_or(0, |(offset, bytes)| offset + bytes.len());
        let contradicts = match self.end {
            Some(known) => end > known || piece.is_last,
            None => piece.is_last && end < last,
        };
        match overlaps_before || overlaps_after || contradicts {
            true => Err(Refusal::Datagram(FragmentDrop::Overlap)),
            false => Ok(()),
        }
    }

    fn add(&mut self, frame: &[u8], piece: &Piece, l3: usize) {
        let bytes = frame.get(piece.payload.clone()).unwrap_or_default();
        self.pieces.insert(piece.offset, bytes.to_vec());
        self.payload_bytes += bytes.len();
        self.mtu = self.mtu.max(piece.len);
        self.has_congestion |= piece.has_congestion;
        if piece.is_last {
            self.end = Some(piece.offset + bytes.len());
        }
        if piece.offset == 0 {
            self.head = frame.get(piece.head.clone()).unwrap_or_default().to_vec();
            (self.header, self.next_header, self.l3) = (piece.header, piece.next_header, l3);
        }
    }

    /// Fragments never overlap, so the datagram is complete if the lengths add up.
    fn is_complete(&self) -> bool {
        self.end == Some(self.payload_bytes)
    }

    /// Writes the datagram to `packet`. `None` if it is too long.
    fn finish(&self, packet: &mut PacketBuf) -> Option<()> {
        let len = self.head.len() + self.payload_bytes;
        let total = u16::try_from(len.checked_sub(self.l3)?).ok()?;
        packet.reset(PacketBuf::HEADROOM);
        if packet.spare_mut().len() < len {
            // As long as a worker's receive buffer, because the worker continues to use it.
            *packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        }
        packet.append(&self.head);
        self.pieces.values().for_each(|bytes| packet.append(bytes));
        let congestion = if self.has_congestion { CONGESTION_EXPERIENCED } else { 0 };
        let ip = packet.head_mut().get_mut(self.l3..)?;
        if let Some(header) = &self.header {
            *ip.get_mut(usize::from(header.named_at))? = self.next_header;
            let mut ip = Ipv6Packet::new_unchecked(ip);
            ip.set_payload_len(total.checked_sub(ipv6::HEADER_LEN as u16)?);
            let class = ip.traffic_class();
            ip.set_traffic_class(class | congestion);
        } else {
            // Clears all flags and the offset except "don't fragment".
            ip.get_mut(6..8)?.iter_mut().zip([0x40, 0]).for_each(|(byte, kept)| *byte &= kept);
            let mut ip = Ipv4Packet::new_unchecked(ip);
            ip.set_total_len(total);
            let tos = ip.tos();
            ip.set_tos(tos | congestion);
            ip.fill_checksum();
        }
        packet.refragment = Some(Refragment { mtu: self.mtu, v6: self.header });
        Some(())
    }
}

/// Divides a reassembled datagram into fragments as long as those received, and calls `each` with
/// every fragment in order. A fragment is a frame with the usual headroom, which `each` may change.
///
/// # Errors
/// The packet was not reassembled; `each` was not called.
pub fn refragment(
    packet: &PacketBuf,
    mut each: impl FnMut(&mut PacketBuf),
) -> Result<(), FragmentError> {
    let Some(Refragment { mtu, v6 }) = packet.refragment else {
        return Err(FragmentError::NotReassembled);
    };
    let Some(header) = v6 else {
        return Fragmenter::new().fragment_again(packet, mtu.into(), each).map(drop);
    };
    let at = packet.located().map_err(|_| FragmentError::NotReassembled)?;
    let l3_end = at.l3_end.min(packet.len());
    let start = at.l3 + usize::from(header.at);
    let overhead = usize::from(header.at) + ipv6::FRAGMENT_HEADER_LEN;
    let step = usize::from(mtu).saturating_sub(overhead) & !7;
    if step == 0 || start >= l3_end {
        return Err(FragmentError::MtuTooSmall(mtu.into()));
    }
    let named_at = at.l3 + usize::from(header.named_at);
    let next_header = packet.head().get(named_at).copied().unwrap_or_default();
    let mut fragment = PacketBuf::with_capacity(PacketBuf::HEADROOM, usize::from(mtu) + at.l3);
    for from in (start..l3_end).step_by(step) {
        let to = l3_end.min(from + step);
        let more = u16::from(to < l3_end);
        let [high, low] = ((from - start) as u16 | more).to_be_bytes();
        let [a, b, c, d] = header.ident;
        fragment.reset(PacketBuf::HEADROOM);
        copy_range(packet, 0..start, &mut fragment);
        fragment.append(&[next_header, 0, high, low, a, b, c, d]);
        copy_range(packet, from..to, &mut fragment);
        let len = overhead - ipv6::HEADER_LEN + (to - from);
        let Some(bytes) = fragment.head_mut().get_mut(at.l3..) else { continue };
        if let Some(byte) = bytes.get_mut(usize::from(header.named_at)) {
            *byte = FRAGMENT_HEADER;
        }
        Ipv6Packet::new_unchecked(bytes).set_payload_len(len as u16);
        each(&mut fragment);
    }
    Ok(())
}

/// The length in bytes of the longest frame on the wire, Ethernet header included. For a
/// reassembled datagram, this is the longest of its fragments.
pub fn longest_frame(packet: &PacketBuf) -> usize {
    let whole = crate::fit::wire_len(packet);
    match (packet.refragment, packet.located()) {
        (Some(Refragment { mtu, .. }), Ok(at)) => whole.min(at.l3 + usize::from(mtu)),
        _ => whole,
    }
}
