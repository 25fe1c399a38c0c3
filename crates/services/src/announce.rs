//! Announcements: unsolicited frames, from which other hosts and switches learn the addresses and
//! routers that this host serves.
//!
//! ```text
//! subjects --(Announcer::set)--> Announcer --(poll)--> frames that are due
//! ```
//!
//! The addresses of a station ([`Subject::Addresses`]) are announced by gratuitous ARP (RFC 5227),
//! unsolicited neighbour advertisements (RFC 4861) or, if it has no IP address, RARP. The first
//! frames are sent 1 second after the start, the next ones after 2, 4, 8 and 16 seconds. A router
//! ([`Subject::Router`]) advertises itself at random intervals (RFC 4861 section 6.2.4).
//!
//! An [`Announcer`] has no clock: the caller passes milliseconds of any epoch, and sends the frames
//! of [`Announcer::poll`].

use crate::router::Router;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::checksum::pseudo_v6;
use wire::icmp::nd::{NdOption, NdOptions};
use wire::{
    ArpOperation, ArpPacket, ArpRepr, EtherType, EthernetPacket, EthernetRepr, Icmpv6Packet,
    Icmpv6Repr, Ipv6Packet, Ipv6Repr, MacAddr, NdRepr, Protocol,
};

/// The maximum number of subjects of an [`Announcer`]. Further ones are not announced.
pub const MAX_SUBJECTS: usize = 16_384;
/// The delay of the first frames of a subject, as in ovn-controller.
const FIRST_MS: u64 = 1000;
/// The longest interval between announcements of addresses. They end after this interval.
const MAX_BACKOFF_MS: u64 = 16_000;
/// MAX_INITIAL_RTR_ADVERT_INTERVAL of RFC 4861 section 10.
const MAX_INITIAL_MS: u64 = 16_000;
/// MAX_INITIAL_RTR_ADVERTISEMENTS of RFC 4861 section 10.
const INITIAL_ADVERTISEMENTS: u32 = 3;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
const RARP: EtherType = EtherType(0x8035);
/// The operation "request reverse" (RFC 903).
const REQUEST_REVERSE: u16 = 3;
const HOP_LIMIT: u8 = 255;

/// The subject of announcements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Subject {
    /// The addresses of a station.
    Addresses {
        /// Its MAC address.
        mac: MacAddr,
        /// Its IP addresses. If there is none, switches learn the MAC address from RARP.
        ips: Vec<IpAddr>,
        /// True if it is a router.
        is_router: bool,
    },
    /// A router, by advertisements.
    Router {
        /// Its MAC address.
        mac: MacAddr,
        /// Its link-local address.
        source: Ipv6Addr,
        /// The flags and options that it advertises.
        router: Router,
        /// The shortest and the longest interval, in milliseconds; at least 1.
        interval_ms: (u64, u64),
    },
}

struct Announced {
    subject: Subject,
    due_ms: u64,
    /// The frames that were sent.
    sent: u32,
}

/// Announces subjects. Each has a key that the caller chooses.
pub struct Announcer<K> {
    announced: BTreeMap<K, Announced>,
    due: BTreeSet<(u64, K)>,
    /// The interval between announcements of addresses grows up to this value and then stays
    /// constant. `None` if announcements end.
    lasting_ms: Option<u64>,
    /// The source of unpredictable random intervals.
    secret: RandomState,
    numbers: u64,
}

impl<K: Ord + Clone> Default for Announcer<K> {
    fn default() -> Self {
        Self {
            announced: BTreeMap::new(),
            due: BTreeSet::new(),
            lasting_ms: None,
            secret: RandomState::new(),
            numbers: 0,
        }
    }
}

impl<K: Ord + Clone> Announcer<K> {
    /// Replaces the subjects. New or changed ones are announced from the start, unchanged ones
    /// continue. With `lasting_ms`, addresses are announced forever, and this is the longest
    /// interval.
    pub fn set(&mut self, subjects: BTreeMap<K, Subject>, lasting_ms: Option<u64>, now_ms: u64) {
        let mut old = std::mem::take(&mut self.announced);
        self.due.clear();
        if self.lasting_ms != lasting_ms {
            old.retain(|_, it| matches!(it.subject, Subject::Router { .. }));
            self.lasting_ms = lasting_ms;
        }
        for (key, subject) in subjects.into_iter().take(MAX_SUBJECTS) {
            let announced = match old.remove(&key).filter(|old| old.subject == subject) {
                Some(old) => old,
                None => {
                    let due_ms = now_ms.saturating_add(match &subject {
                        Subject::Addresses { .. } => FIRST_MS,
                        Subject::Router { interval_ms, .. } => {
                            self.advert_interval(*interval_ms, 0)
                        }
                    });
                    Announced { subject, due_ms, sent: 0 }
                }
            };
            if announced.due_ms != u64::MAX {
                self.due.insert((announced.due_ms, key.clone()));
            }
            self.announced.insert(key, announced);
        }
    }

    /// When [`Self::poll`] must be called next; `None` if nothing is left to announce.
    pub fn due_ms(&self) -> Option<u64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Returns the frames that are due, each with its key. Stops after the subject that reaches
    /// `limit` frames.
    pub fn poll(&mut self, now_ms: u64, limit: usize) -> Vec<(K, Vec<u8>)> {
        let mut frames = Vec::new();
        // The loop ends, because each turn moves the due time of a subject after `now_ms`.
        while frames.len() < limit
            && let Some((due, key)) = self.due.pop_first()
        {
            if due > now_ms {
                self.due.insert((due, key));
                break;
            }
            let Some(mut announced) = self.announced.remove(&key) else { continue };
            let made = announced.subject.frames().into_iter();
            frames.extend(made.map(|frame| (key.clone(), frame)));
            announced.sent = announced.sent.saturating_add(1);
            let rest = match &announced.subject {
                Subject::Addresses { .. } => self.backoff(announced.sent),
                Subject::Router { interval_ms, .. } => {
                    Some(self.advert_interval(*interval_ms, announced.sent))
                }
            };
            announced.due_ms = rest.map_or(u64::MAX, |rest| now_ms.saturating_add(rest.max(1)));
            if announced.due_ms != u64::MAX {
                self.due.insert((announced.due_ms, key.clone()));
            }
            self.announced.insert(key, announced);
        }
        frames
    }

    /// The interval after `sent` announcements of addresses; `None` if the last one was sent.
    fn backoff(&self, sent: u32) -> Option<u64> {
        let doubled = 1_u64.checked_shl(sent).unwrap_or(u64::MAX).saturating_mul(1000);
        match self.lasting_ms {
            Some(lasting_ms) => Some(doubled.min(lasting_ms)),
            None => (doubled <= MAX_BACKOFF_MS).then_some(doubled),
        }
    }

    fn advert_interval(&mut self, (min_ms, max_ms): (u64, u64), sent: u32) -> u64 {
        self.numbers = self.numbers.wrapping_add(1);
        let random = self.secret.hash_one(self.numbers);
        let interval = min_ms + random % (max_ms.saturating_sub(min_ms) + 1);
        if sent < INITIAL_ADVERTISEMENTS { interval.min(MAX_INITIAL_MS) } else { interval }
    }
}

impl Subject {
    fn frames(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Addresses { mac, ips, .. } if ips.is_empty() => vec![rarp(*mac)],
            Self::Addresses { mac, ips, is_router } => {
                let made = ips.iter().map(|ip| match ip {
                    IpAddr::V4(ip) => gratuitous_arp(*mac, *ip),
                    IpAddr::V6(ip) => unsolicited_advert(*mac, *ip, *is_router),
                });
                made.collect()
            }
            Self::Router { mac, source, router, .. } => {
                vec![to_all_nodes(*mac, *source, router.advertisement())]
            }
        }
    }
}

fn gratuitous_arp(mac: MacAddr, ip: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: mac,
        sender_ip: ip,
        target_mac: MacAddr([0; 6]),
        target_ip: ip,
    };
    broadcast(mac, EtherType::ARP, arp)
}

/// A RARP request for a MAC address (RFC 903). No host answers it, but switches learn the MAC
/// address.
fn rarp(mac: MacAddr) -> Vec<u8> {
    let rarp = ArpRepr {
        operation: ArpOperation::Other(REQUEST_REVERSE),
        sender_mac: mac,
        sender_ip: Ipv4Addr::UNSPECIFIED,
        target_mac: mac,
        target_ip: Ipv4Addr::UNSPECIFIED,
    };
    broadcast(mac, RARP, rarp)
}

fn broadcast(src: MacAddr, ethertype: EtherType, arp: ArpRepr) -> Vec<u8> {
    let mut packet = ArpPacket::new_unchecked(vec![0; arp.header_len()]);
    arp.emit(&mut packet);
    frame(EthernetRepr { dst: MacAddr::BROADCAST, src, ethertype }, &packet.into_inner())
}

fn unsolicited_advert(mac: MacAddr, target: Ipv6Addr, router: bool) -> Vec<u8> {
    let mut scratch = [0; 8];
    let options = NdOptions::write(&[NdOption::TargetLinkLayer(mac)], &mut scratch);
    let options = options.unwrap_or_default();
    let advert =
        NdRepr::NeighborAdvertisement { router, solicited: false, replace: true, target, options };
    to_all_nodes(mac, target, advert)
}

/// A frame with a neighbour discovery message to all nodes of the link.
fn to_all_nodes(mac: MacAddr, source: Ipv6Addr, message: NdRepr<'_>) -> Vec<u8> {
    let message = Icmpv6Repr::Nd(message);
    let len = message.message_len();
    let header = Ipv6Repr {
        traffic_class: 0,
        flow_label: 0,
        // The cast is lossless: the options of a router have at most 1,200 bytes.
        payload_len: len as u16,
        next_header: Protocol::ICMPV6,
        hop_limit: HOP_LIMIT,
        src: source,
        dst: ALL_NODES,
    };
    let mut icmp = Icmpv6Packet::new_unchecked(vec![0; len]);
    message.emit(&mut icmp, pseudo_v6(source, ALL_NODES, Protocol::ICMPV6, len as u32));
    let mut ip = Ipv6Packet::new_unchecked(vec![0; header.header_len()]);
    header.emit(&mut ip);
    let link = EthernetRepr { dst: ALL_NODES_MAC, src: mac, ethertype: EtherType::IPV6 };
    frame(link, &[ip.into_inner(), icmp.into_inner()].concat())
}

fn frame(link: EthernetRepr, payload: &[u8]) -> Vec<u8> {
    let mut packet = EthernetPacket::new_unchecked(vec![0; link.header_len()]);
    link.emit(&mut packet);
    [&packet.into_inner(), payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::{AddressMode, Preference};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
    const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);

    fn addresses(ips: &[&str]) -> Subject {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Subject::Addresses { mac: MAC, ips, is_router: true }
    }

    fn router(interval_ms: (u64, u64)) -> Subject {
        let router = Router::new(AddressMode::Slaac, Preference::Medium);
        Subject::Router { mac: MAC, source: LINK_LOCAL, router, interval_ms }
    }

    /// The times up to `end_ms` at which a subject is announced, in milliseconds.
    fn times(announcer: &mut Announcer<u8>, end_ms: u64) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(due) = announcer.due_ms().filter(|due| *due <= end_ms) {
            assert!(announcer.poll(due - 1, 10).is_empty());
            times.extend(announcer.poll(due, 10).iter().map(|_| due));
        }
        times
    }

    #[test]
    fn addresses_are_announced_five_times_with_growing_intervals() {
        let mut announcer = Announcer::default();
        let subjects = BTreeMap::from([(1, addresses(&["192.0.2.1"]))]);
        announcer.set(subjects.clone(), None, 0);
        assert_eq!(times(&mut announcer, 2000), [1000]);
        // An unchanged subject continues, a changed one starts again.
        announcer.set(subjects.clone(), None, 2500);
        assert_eq!(times(&mut announcer, u64::MAX), [3000, 7000, 15_000, 31_000]);
        announcer.set(subjects, None, 50_000);
        assert_eq!(announcer.due_ms(), None);
        announcer.set(BTreeMap::from([(1, addresses(&["192.0.2.2"]))]), None, 60_000);
        assert_eq!(times(&mut announcer, 62_000), [61_000]);
        announcer.set(BTreeMap::new(), None, 62_000);
        assert_eq!(announcer.due_ms(), None);
    }

    #[test]
    fn addresses_are_announced_forever_with_a_lasting_interval() {
        let mut announcer = Announcer::default();
        announcer.set(BTreeMap::from([(1, addresses(&["192.0.2.1"]))]), Some(3000), 0);
        assert_eq!(times(&mut announcer, 12_000), [1000, 3000, 6000, 9000, 12_000]);
        // Another interval starts again.
        announcer.set(BTreeMap::from([(1, addresses(&["192.0.2.1"]))]), None, 20_000);
        assert_eq!(times(&mut announcer, 24_000), [21_000, 23_000]);
    }

    #[test]
    fn router_is_announced_at_random_intervals_and_sooner_at_the_start() {
        let mut announcer = Announcer::default();
        announcer.set(BTreeMap::from([(1, router((20_000, 60_000)))]), None, 0);
        let sent = times(&mut announcer, 3_600_000);
        assert_eq!(sent[..3], [16_000, 32_000, 48_000]);
        let intervals: BTreeSet<u64> = sent[2..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(intervals.iter().all(|it| (20_000..=60_000).contains(it)), "{intervals:?}");
        assert!(intervals.len() > 20, "{intervals:?}");
    }

    #[test]
    fn poll_returns_no_more_than_asked_for() {
        let mut announcer = Announcer::default();
        announcer.set((0..9).map(|key| (key, addresses(&["192.0.2.1"]))).collect(), None, 0);
        let mut keys = Vec::new();
        for expected in [4, 4, 1, 0] {
            let frames = announcer.poll(1000, 4);
            assert_eq!(frames.len(), expected);
            keys.extend(frames.into_iter().map(|(key, _)| key));
        }
        assert_eq!(keys, Vec::from_iter(0..9));
    }

    #[test]
    fn frames_are_those_of_the_protocols() {
        let frames = addresses(&["192.0.2.1", "fd00::7"]).frames();
        let [arp, advert] = &frames[..] else { panic!("{frames:?}") };
        let ethernet = EthernetPacket::new_checked(&arp[..]).unwrap();
        assert_eq!((ethernet.dst(), ethernet.src()), (MacAddr::BROADCAST, MAC));
        let arp = ArpRepr::parse(&ArpPacket::new_checked(ethernet.payload()).unwrap()).unwrap();
        assert_eq!(arp.operation, ArpOperation::Request);
        assert_eq!((arp.sender_ip, arp.target_ip), ([192, 0, 2, 1].into(), [192, 0, 2, 1].into()));
        let read = |frame: &[u8]| -> (Ipv6Addr, bool) {
            let ethernet = EthernetPacket::new_checked(frame).unwrap();
            assert_eq!((ethernet.dst(), ethernet.src()), (ALL_NODES_MAC, MAC));
            let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            assert_eq!(ip.dst(), ALL_NODES);
            let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
            let parsed = Icmpv6Repr::parse(&icmp, ip.pseudo_header(), ip.hop_limit()).unwrap();
            match parsed {
                Icmpv6Repr::Nd(NdRepr::NeighborAdvertisement {
                    router: true,
                    solicited: false,
                    replace: true,
                    target,
                    options,
                }) => {
                    assert_eq!(options.target_link_layer(), Some(MAC));
                    assert_eq!(target, ip.src());
                    (target, false)
                }
                Icmpv6Repr::Nd(NdRepr::RouterAdvertisement { .. }) => (ip.src(), true),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(read(advert), ("fd00::7".parse().unwrap(), false));
        assert_eq!(read(&router((1, 1)).frames()[0]), (LINK_LOCAL, true));
        let [rarp] = &addresses(&[]).frames()[..] else { panic!("one frame") };
        let ethernet = EthernetPacket::new_checked(&rarp[..]).unwrap();
        assert_eq!(ethernet.ethertype(), RARP);
        let rarp = ArpRepr::parse(&ArpPacket::new_checked(ethernet.payload()).unwrap()).unwrap();
        assert_eq!((rarp.operation, rarp.target_mac), (ArpOperation::Other(3), MAC));
    }
}
