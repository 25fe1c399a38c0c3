//! Parses the output of ovn-trace: the ports to which a packet is sent, and its headers at each.
//!
//! `--minimal` lists header changes, but does not mark where nested copies begin and end.
//! `--summary` marks that, but has no values. Both print one tree in the same order, so the parser
//! walks the summary and takes the values from the minimal list.

use flow::{Field, FlowKey};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

/// The headers of a packet as Open vSwitch stores them. Some fields share storage: addresses and
/// operation of ARP with those of IP, ICMP type and code with ports, and link-layer addresses of
/// neighbour discovery with those of ARP.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Headers {
    dl_src: u128,
    dl_dst: u128,
    dl_type: u128,
    nw_src: u128,
    nw_dst: u128,
    ipv6_src: u128,
    ipv6_dst: u128,
    nw_proto: u128,
    nw_ttl: u128,
    tp_src: u128,
    tp_dst: u128,
    tcp_flags: u128,
    arp_sha: u128,
    arp_tha: u128,
    nd_target: u128,
}

/// Prints addresses and numbers in their usual form, for the messages of tests.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dl_src, dl_dst, dl_type, nw_src, nw_dst, nw_proto, nw_ttl, .. } = self;
        write!(f, "{dl_src:012x} > {dl_dst:012x}, {dl_type:#06x}, ")?;
        let [from, to] = [*nw_src as u32, *nw_dst as u32].map(Ipv4Addr::from_bits);
        let [from6, to6] = [self.ipv6_src, self.ipv6_dst].map(Ipv6Addr::from_bits);
        match *dl_type {
            IPV6 => write!(f, "{from6} > {to6}, "),
            _ => write!(f, "{from} > {to}, "),
        }?;
        write!(f, "{nw_proto}, ttl {nw_ttl}, {} > {}, ", self.tp_src, self.tp_dst)?;
        let target = Ipv6Addr::from_bits(self.nd_target);
        write!(f, "{:#x}, {:012x} > {:012x}, {target}", self.tcp_flags, self.arp_sha, self.arp_tha)
    }
}

const ARP: u128 = 0x806;
const IPV4: u128 = 0x800;
const IPV6: u128 = 0x86dd;
const RST: u128 = 0x04;
const ACK: u128 = 0x10;

impl Headers {
    pub fn of(key: &FlowKey) -> Self {
        let dl_type = key.get(Field::EthType);
        let proto = key.get(Field::IpProto);
        let is_ip = dl_type == IPV4 || dl_type == IPV6;
        let is_icmp = is_ip && matches!(proto, 1 | 58);
        let get = |is: bool, field| if is { key.get(field) } else { 0 };
        let is_arp = dl_type == ARP;
        Self {
            dl_src: key.get(Field::EthSrc),
            dl_dst: key.get(Field::EthDst),
            dl_type,
            nw_src: get(is_arp, Field::ArpSpa) | get(dl_type == IPV4, Field::Ip4Src),
            nw_dst: get(is_arp, Field::ArpTpa) | get(dl_type == IPV4, Field::Ip4Dst),
            ipv6_src: get(dl_type == IPV6, Field::Ip6Src),
            ipv6_dst: get(dl_type == IPV6, Field::Ip6Dst),
            nw_proto: get(is_arp, Field::ArpOp) | get(is_ip, Field::IpProto),
            nw_ttl: get(is_ip, Field::IpTtl),
            tp_src: get(is_icmp, Field::IcmpType) | get(is_ip && !is_icmp, Field::TpSrc),
            tp_dst: get(is_icmp, Field::IcmpCode) | get(is_ip && !is_icmp, Field::TpDst),
            tcp_flags: get(is_ip && proto == 6, Field::TcpFlags),
            arp_sha: get(is_arp, Field::ArpSha) | get(is_icmp, Field::NdSll),
            arp_tha: get(is_arp, Field::ArpTha) | get(is_icmp, Field::NdTll),
            nd_target: get(is_icmp, Field::NdTarget),
        }
    }

    /// Clears the fields of headers that the packet lacks. They are leftovers of the packet that it
    /// was created from.
    pub fn cleared(mut self) -> Self {
        let is_ip = self.dl_type == IPV4 || self.dl_type == IPV6;
        let is_nd = self.dl_type == IPV6 && self.nw_proto == 58 && matches!(self.tp_src, 135 | 136);
        if self.dl_type != IPV6 {
            (self.ipv6_src, self.ipv6_dst) = (0, 0);
        }
        if !matches!(self.dl_type, ARP | IPV4) {
            (self.nw_src, self.nw_dst) = (0, 0);
        }
        if !is_ip {
            (self.nw_ttl, self.tp_src, self.tp_dst) = (0, 0, 0);
        }
        if !is_ip && self.dl_type != ARP {
            self.nw_proto = 0;
        }
        if !(is_ip && self.nw_proto == 6) {
            self.tcp_flags = 0;
        }
        if !matches!(self.nw_proto, 1 | 58 | 6 | 17 | 132) {
            (self.tp_src, self.tp_dst) = (0, 0);
        }
        if !is_nd {
            self.nd_target = 0;
        }
        if !is_nd && self.dl_type != ARP {
            (self.arp_sha, self.arp_tha) = (0, 0);
        }
        self
    }

    /// True for a neighbour solicitation.
    pub fn is_solicitation(&self) -> bool {
        self.dl_type == IPV6 && (self.nw_proto, self.tp_src) == (58, 135)
    }

    /// True for a TCP reset, and for every SCTP packet, which may be an ABORT.
    pub fn is_reset(&self) -> bool {
        self.nw_proto == 6 && self.tcp_flags & RST != 0 || self.nw_proto == 132
    }

    /// The field that stores a symbol of OVN; `None` for registers and other symbols.
    fn place(&mut self, symbol: &str) -> Option<&mut u128> {
        Some(match symbol {
            "eth.src" => &mut self.dl_src,
            "eth.dst" => &mut self.dl_dst,
            "ip4.src" | "arp.spa" => &mut self.nw_src,
            "ip4.dst" | "arp.tpa" => &mut self.nw_dst,
            "ip6.src" => &mut self.ipv6_src,
            "ip6.dst" => &mut self.ipv6_dst,
            "arp.op" | "ip.proto" => &mut self.nw_proto,
            "ip.ttl" => &mut self.nw_ttl,
            "arp.sha" | "nd.sll" => &mut self.arp_sha,
            "arp.tha" | "nd.tll" => &mut self.arp_tha,
            "nd.target" => &mut self.nd_target,
            "icmp4.type" | "icmp6.type" | "tcp.src" | "udp.src" | "sctp.src" => &mut self.tp_src,
            "icmp4.code" | "icmp6.code" | "tcp.dst" | "udp.dst" | "sctp.dst" => &mut self.tp_dst,
            _ => return None,
        })
    }
}

/// Differences of ovn-trace from ovn-controller. weft does as ovn-controller does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Own {
    /// A neighbour solicitation keeps the IP addresses, protocol and hop limit of the packet that
    /// caused it.
    SolicitationKeepsHeaders,
    /// A TCP reset or an SCTP ABORT keeps the ports; ovn-controller swaps them, and sets the
    /// acknowledgement of a reset.
    ResetKeepsPorts,
    /// `reject` of UDP sends "host unreachable"; ovn-controller sends "port unreachable".
    RejectIsHostUnreachable,
    /// A reset or an ABORT has TTL 255; it is 63 in ovn-controller and 64 in weft.
    ResetHasTtl255,
}

/// The result of ovn-trace.
#[derive(Default)]
pub struct Answer {
    /// The logical ports that the packet is sent to, with its headers, in order.
    pub outputs: Vec<(String, Headers)>,
    /// The members that `select` actions took at random, in order.
    pub selected: Vec<u16>,
    /// Lines with errors.
    pub errors: Vec<String>,
    /// The differences from ovn-controller that the parser has corrected.
    pub own: Vec<Own>,
}

/// Parses the output for a packet with these headers.
///
/// # Panics
/// The text is not understood.
pub fn read(trace_output: &str, headers: &Headers) -> Answer {
    let (head, minimal) = trace_output.split_once("# Minimal trace.\n").expect("a minimal trace");
    let (_, summary) = head.split_once("# Summary trace.\n").expect("a summary trace");
    let values = minimal.lines().map(entry).filter(|line| *line != "}").collect();
    let lines = summary.lines().collect();
    let answer = Answer::default();
    let mut walk = Walk { lines, at: 0, values, used: 0, rejecting: false, answer };
    walk.block(&mut headers.clone(), Kind::Pipeline);
    assert_eq!(walk.used, walk.values.len(), "values are left over: {trace_output}");
    walk.answer
}

/// A line without indentation, and without the ` {` or `;` at its end.
fn entry(line: &str) -> &str {
    let line = line.trim();
    line.strip_suffix(" {").or_else(|| line.strip_suffix(';')).unwrap_or(line)
}

/// The block of the summary whose lines are walked.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Pipeline,
    Multicast,
}

/// The state of the parser.
struct Walk<'t> {
    /// The lines of the summary.
    lines: Vec<&'t str>,
    /// The index of the next line.
    at: usize,
    /// The entries of the minimal list.
    values: Vec<&'t str>,
    /// The number of consumed entries.
    used: usize,
    /// True when the previous step was `reject`.
    rejecting: bool,
    answer: Answer,
}

impl<'t> Walk<'t> {
    /// Walks the lines up to the end of a block. `headers` are those of the packet in it.
    fn block(&mut self, headers: &mut Headers, kind: Kind) {
        while let Some(&line) = self.lines.get(self.at) {
            self.at += 1;
            let line = line.trim();
            if line == "};" || line == "}" {
                return;
            }
            match line.strip_suffix(" {") {
                Some(opening) => self.nested(opening, headers, kind),
                None => self.step(line.strip_suffix(';').unwrap_or(line), headers),
            }
        }
    }

    /// Walks a block inside another one. `opening` is its first line, without ` {`.
    fn nested(&mut self, opening: &str, headers: &mut Headers, kind: Kind) {
        if opening.starts_with("ingress(") || opening.starts_with("multicast(") {
            let inner = if opening.starts_with("m") { Kind::Multicast } else { Kind::Pipeline };
            return self.block(&mut headers.clone(), inner);
        }
        if opening.starts_with("egress(") {
            // The egress pipelines of a multicast group's members share one copy of the packet.
            return match kind {
                Kind::Multicast => self.block(headers, Kind::Pipeline),
                Kind::Pipeline => self.block(&mut headers.clone(), Kind::Pipeline),
            };
        }
        self.transformation(opening);
        let mut inner = self.transformed(opening, headers);
        self.block(&mut inner, Kind::Pipeline);
    }

    /// The packet that an action creates, before nested actions change it.
    fn transformed(&mut self, name: &str, old: &Headers) -> Headers {
        let mut new = old.clone();
        let rejecting = std::mem::take(&mut self.rejecting);
        if rejecting {
            (new.dl_src, new.dl_dst) = (old.dl_dst, old.dl_src);
            (new.nw_src, new.nw_dst) = (old.nw_dst, old.nw_src);
            (new.ipv6_src, new.ipv6_dst) = (old.ipv6_dst, old.ipv6_src);
        }
        match name {
            "arp" => {
                (new.dl_type, new.nw_proto, new.nw_ttl) = (ARP, 1, 0);
                (new.arp_sha, new.arp_tha) = (old.dl_src, 0);
            }
            "nd_na" => {
                (new.dl_src, new.dl_dst) = (old.dl_dst, old.dl_src);
                (new.ipv6_src, new.ipv6_dst) = (old.nd_target, old.ipv6_src);
                (new.tp_src, new.arp_sha, new.arp_tha) = (136, 0, old.dl_dst);
            }
            "nd_ns" => {
                self.answer.own.push(Own::SolicitationKeepsHeaders);
                let target = old.ipv6_dst;
                new.dl_dst = 0x3333_ff00_0000 | target & 0xff_ffff;
                new.ipv6_src = link_local(old.dl_src);
                new.ipv6_dst = (0xff02 << 112) | 0x1_ff00_0000 | target & 0xff_ffff;
                (new.nw_proto, new.nw_ttl, new.tp_src, new.tp_dst) = (58, 255, 135, 0);
                (new.arp_sha, new.arp_tha, new.nd_target) = (old.dl_src, 0, target);
            }
            "icmp4" | "icmp6" => {
                let is_v4 = name == "icmp4";
                (new.nw_proto, new.tp_src) = if is_v4 { (1, 3) } else { (58, 1) };
                (new.nw_ttl, new.tp_dst) = (255, 1);
                if rejecting && old.nw_proto == 17 {
                    self.answer.own.push(Own::RejectIsHostUnreachable);
                    new.tp_dst = if is_v4 { 3 } else { 4 };
                }
            }
            "tcp_reset" => {
                self.answer.own.push(Own::ResetKeepsPorts);
                (new.tp_src, new.tp_dst) = (old.tp_dst, old.tp_src);
                self.answer.own.push(Own::ResetHasTtl255);
                // RFC 9293 section 3.10.7.1: the reset acknowledges only a segment without ACK.
                let flags = if old.tcp_flags & ACK == 0 { RST | ACK } else { RST };
                (new.nw_ttl, new.tcp_flags) = (64, flags);
            }
            "sctp_abort" => {
                self.answer.own.push(Own::ResetKeepsPorts);
                (new.tp_src, new.tp_dst) = (old.tp_dst, old.tp_src);
                self.answer.own.push(Own::ResetHasTtl255);
                new.nw_ttl = 64;
            }
            _ => {}
        }
        new
    }

    /// Consumes the action that creates a packet from another one. It is in both lists.
    fn transformation(&mut self, name: &str) {
        assert_eq!(self.values.get(self.used).copied(), Some(name), "{:?}", self.values);
        self.used += 1;
        if let Some(rest) = name.strip_prefix("select: ") {
            let value = rest.split(' ').nth(2).and_then(|value| value.parse().ok());
            self.answer.selected.push(value.unwrap_or_else(|| panic!("{name}")));
        }
    }

    /// Applies a line of the summary that opens no block.
    fn step(&mut self, text: &str, headers: &mut Headers) {
        if text.starts_with("***") {
            self.answer.errors.push(text.to_owned());
            self.skip(text);
            return;
        }
        if let Some(rest) = text.strip_prefix("/* output to \"") {
            let name = rest.split('"').next().unwrap_or_default();
            if self.values.get(self.used) == Some(&format!("output(\"{name}\")").as_str()) {
                self.used += 1;
                self.answer.outputs.push((name.to_owned(), headers.clone().cleared()));
            }
            return;
        }
        self.rejecting = text.starts_with("reject {");
        // The summary shows nested actions as one line of text, and then step by step.
        if text.contains('{') || text.starts_with("/*") {
            return;
        }
        if text == "ip.ttl--" {
            if self.skip(text) {
                headers.nw_ttl -= 1;
            }
        } else if let Some((a, b)) = text.split_once(" <-> ") {
            self.assign(a, headers);
            self.assign(b, headers);
        } else if let Some((to, _)) = text.split_once(" = ") {
            self.assign(to, headers);
        } else if text.starts_with("get_arp(") || text.starts_with("get_nd(") {
            self.assign("eth.dst", headers);
        } else if text.starts_with("push(") || text.starts_with("pop(") {
            self.pushed_or_popped(headers);
        } else if text.split(' ').count() == 1 && !text.contains('(') {
            // A created packet without nested steps.
            self.skip(text);
        }
    }

    /// Consumes the next value if it is this text.
    fn skip(&mut self, text: &str) -> bool {
        let is_next = self.values.get(self.used).is_some_and(|value| *value == text);
        self.used += usize::from(is_next);
        is_next
    }

    /// Consumes the next value and stores it if it is a value of `symbol`. The minimal list has no
    /// values of registers.
    fn assign(&mut self, symbol: &str, headers: &mut Headers) {
        let Some((to, value)) =
            self.values.get(self.used).and_then(|value| value.split_once(" = "))
        else {
            return;
        };
        if to == symbol {
            self.used += 1;
            let place = headers.place(symbol).unwrap_or_else(|| panic!("{symbol} is not known"));
            *place = number(value);
        }
    }

    /// Consumes `push(x) -> value` or `pop(x) <- value`; the latter changes the packet.
    fn pushed_or_popped(&mut self, headers: &mut Headers) {
        let value = self.values.get(self.used).copied().unwrap_or_default();
        self.used += 1;
        if let Some((to, value)) =
            value.strip_prefix("pop(").and_then(|rest| rest.split_once(") <- "))
            && let Some(place) = headers.place(to)
        {
            *place = number(value);
        }
    }
}

/// The link-local address derived from a MAC address (RFC 4291 appendix A).
fn link_local(mac: u128) -> u128 {
    let (vendor, device) = (mac >> 24 ^ 0x02_0000, mac & 0xff_ffff);
    0xfe80 << 112 | vendor << 40 | 0xff_fe00_0000 | device
}

fn number(text: &str) -> u128 {
    let hexadecimal = |digits| u128::from_str_radix(digits, 16).ok();
    text.strip_prefix("0x")
        .and_then(hexadecimal)
        .or_else(|| text.parse().ok())
        .or_else(|| text.parse().ok().map(|address: Ipv4Addr| address.to_bits().into()))
        .or_else(|| text.parse().ok().map(Ipv6Addr::to_bits))
        .or_else(|| {
            let MacAddr(bytes) = text.parse().ok()?;
            Some(bytes.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
        })
        .unwrap_or_else(|| panic!("`{text}` is no value"))
}
