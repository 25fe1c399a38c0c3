"""Makes the frames that RA guard and DHCP guard check, with scapy, and prints one JSON object per line.

    guarded.py SRC_MAC DST_MAC [SRC_MAC DST_MAC]...

An object is {"src", "dst", "name", "trust", "frames"}: "src" and "dst" are the MAC addresses. "frames" is a list of
pairs: a frame in hexadecimal, and the drop reason of this frame from a port without trust, or null if it passes.
"trust" is the protocol for which a port must be trusted, so that all frames pass except those of the reason
"malformed"; null if no frame is dropped.
"""

import json
import sys

from scapy.compat import raw
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import DHCP6_Advertise, DHCP6_RelayForward, DHCP6_Solicit
from scapy.layers.dns import DNS
from scapy.layers.inet import ICMP, IP, UDP, IPOption_Router_Alert
from scapy.layers.inet6 import (ICMPv6EchoRequest, ICMPv6ND_RA, ICMPv6ND_Redirect, ICMPv6ND_RS, ICMPv6NDOptMTU,
                                ICMPv6NDOptSrcLLAddr, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment,
                                IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, PadN)
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Raw

ALL_NODES, ALL_NODES_MAC = "ff02::1", "33:33:00:00:00:01"
RA, DHCP_REASON, MALFORMED = "ra_guard", "dhcp_guard", "malformed"
# The maximum number of extension headers that weft's parser follows.
MOST_EXTENSIONS = 12


def link_local(mac):
    """The address with the interface identifier of a MAC address (RFC 4291, appendix A)."""
    a, b, c, d, e, f = (int(byte, 16) for byte in mac.split(":"))
    return "fe80::%x:%x:%x:%x" % ((a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f)


class Serial:
    """Serial numbers, so that no two frames are equal."""

    def __init__(self):
        self.last = 0

    def __call__(self):
        self.last += 1
        return self.last


serial = Serial()


def ip6(upper, dst=None, hop_limit=255):
    return IPv6(src=SRC_IP, dst=dst or DST_IP, hlim=hop_limit, fl=serial()) / upper


def ether(packet):
    dst = ALL_NODES_MAC if getattr(packet, "dst", None) == ALL_NODES else DST
    return Ether(src=SRC, dst=dst) / packet


def advertisement():
    return ICMPv6ND_RA(routerlifetime=1800) / ICMPv6NDOptMTU(mtu=1280) / ICMPv6NDOptSrcLLAddr(lladdr=SRC)


def redirect():
    return ICMPv6ND_Redirect(tgt=SRC_IP, dst="fd77::99")


def options():
    return IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\x00" * 4)])


def behind(headers, upper):
    """Puts extension headers between the IPv6 header and `upper`, whose checksum stays correct."""
    packet = upper
    for header in reversed(headers):
        packet = header / packet
    return packet


def in_fragments(upper, cuts, before=(), inside=()):
    """The fragments of a packet. `before` and `inside` are the extension headers on both sides of the fragment header.
    `cuts` are the offsets at which later fragments begin."""
    whole = ip6(upper)
    bytes_of_upper = raw(whole)[40:]
    chain = raw(behind(list(inside), Raw(b""))) if inside else b""
    if inside:
        # The last header of the chain contains the number of the upper layer.
        last = len(chain) - 8
        chain = chain[:last] + bytes([whole.nh]) + chain[last + 1:]
    content = chain + bytes_of_upper
    first_header = 60 if inside else whole.nh
    number = serial()
    ends = [0, *cuts, len(content)]
    for begin, end in zip(ends, ends[1:]):
        fragment = IPv6ExtHdrFragment(nh=first_header, offset=begin // 8, m=int(end < len(content)), id=number)
        yield ip6(behind([*before, fragment], Raw(content[begin:end])))


def in_snap(frame):
    """The IEEE 802.3 form of an Ethernet II frame."""
    content = b"\xaa\xaa\x03\x00\x00\x00" + frame[12:]
    return frame[:12] + len(content).to_bytes(2, "big") + content


def tagged(tags, frame):
    header = Ether(frame[:14])
    packet = Ether(src=header.src, dst=header.dst)
    for tag in tags:
        packet = packet / tag
    # scapy provides only the tags. The EtherType after them is that of the frame.
    return raw(packet / Raw(b""))[:12 + 4 * len(tags)] + frame[12:]


def disguised(make, reason):
    """Yields the message in other Ethernet framings: behind tags and in SNAP."""
    def framed(frame):
        return [(frame, reason)]

    yield "behind a priority tag", framed(tagged([Dot1Q(vlan=0)], make()))
    yield "behind a tag", framed(tagged([Dot1Q(vlan=7)], make()))
    yield "behind two tags", framed(tagged([Dot1AD(vlan=7), Dot1Q(vlan=9)], make()))
    yield "in SNAP", framed(in_snap(make()))
    yield "in SNAP behind two tags", framed(tagged([Dot1Q(vlan=0), Dot1Q(vlan=7)], in_snap(make())))


def router_messages():
    def one(packet, reason=RA):
        return [(raw(ether(packet)), reason)]

    yield "advertisement to all nodes", one(ip6(advertisement(), ALL_NODES))
    yield "advertisement to a host", one(ip6(advertisement()))
    yield "advertisement of another code and hop limit", one(ip6(ICMPv6ND_RA(code=7), hop_limit=64))
    yield "redirect", one(ip6(redirect()))
    routing = IPv6ExtHdrRouting(type=4, segleft=0)
    for name, headers in [("hop-by-hop options", [IPv6ExtHdrHopByHop(options=[PadN(optdata=b"\x00" * 4)])]),
                          ("destination options", [options()]), ("a routing header", [routing]),
                          ("the most extension headers", [options() for _ in range(MOST_EXTENSIONS)])]:
        yield "advertisement behind " + name, one(ip6(behind(headers, advertisement()), ALL_NODES))
        yield "redirect behind " + name, one(ip6(behind(headers, redirect())))
    too_deep = [options() for _ in range(MOST_EXTENSIONS + 1)]
    yield "advertisement behind too many extension headers", one(ip6(behind(too_deep, advertisement())), MALFORMED)
    for name, make in disguised(lambda: raw(ether(ip6(advertisement(), ALL_NODES))), RA):
        yield "advertisement " + name, make


def router_fragments():
    def of(reasons, *arguments, **named):
        return [(raw(ether(packet)), reason)
                for packet, reason in zip(in_fragments(*arguments, **named), reasons, strict=True)]

    yield "advertisement in an atomic fragment", of([RA], advertisement(), [])
    yield "advertisement in two fragments", of([RA, None], advertisement(), [16])
    yield "shortest first fragment", of([RA, None], advertisement(), [8])
    yield "options before the fragment header", of([RA, None], advertisement(), [16], before=[options()])
    yield "options behind the fragment header", of([RA, RA], advertisement(), [24], inside=[options()])
    yield "header chain in two fragments", of([MALFORMED, RA], advertisement(), [8], inside=[options()])


def ip4(upper, dst="255.255.255.255", **fields):
    return IP(src="192.168.7.99", dst=dst, id=serial(), **fields) / upper


def offer(sport=67, dport=68):
    return (UDP(sport=sport, dport=dport) / BOOTP(op=2, yiaddr="192.168.7.77", xid=serial())
            / DHCP(options=[("message-type", "offer"), "end"]))


def dhcp_messages():
    def one(packet):
        return [(raw(ether(packet)), DHCP_REASON)]

    yield "offer", one(ip4(offer()))
    yield "offer to an address", one(ip4(offer(), dst="192.168.7.3"))
    yield "offer from another port", one(ip4(offer(sport=1067)))
    yield "message of a relay", one(ip4(offer(dport=67)))
    yield "offer behind IPv4 options", one(ip4(offer(), options=[IPOption_Router_Alert()]))
    datagram = raw(ip4(offer()))[20:]
    number = serial()
    yield "offer in fragments", [
        (raw(ether(IP(src="192.168.7.99", dst="255.255.255.255", id=number, proto=17, frag=begin // 8,
                      flags="MF" if end < len(datagram) else 0) / Raw(datagram[begin:end]))),
         DHCP_REASON if begin == 0 else None)
        for begin, end in [(0, 8), (8, 64), (64, len(datagram))]]
    for name, make in disguised(lambda: raw(ether(ip4(offer()))), DHCP_REASON):
        yield "offer " + name, make


def dhcp6_messages():
    def advertise(sport=547):
        return UDP(sport=sport, dport=546) / DHCP6_Advertise(trid=serial())

    def one(packet):
        return [(raw(ether(packet)), DHCP_REASON)]

    yield "DHCPv6 advertise", one(ip6(advertise()))
    yield "DHCPv6 advertise from another port", one(ip6(advertise(sport=1547)))
    relayed = UDP(sport=547, dport=547) / DHCP6_RelayForward(linkaddr="fd77::1", peeraddr=SRC_IP)
    yield "DHCPv6 relay", one(ip6(relayed))
    yield "DHCPv6 advertise behind options", one(ip6(behind([options(), options()], advertise())))
    fragments = zip(in_fragments(advertise(), [8]), [DHCP_REASON, None], strict=True)
    yield "DHCPv6 advertise in fragments", [(raw(ether(packet)), reason) for packet, reason in fragments]
    for name, make in disguised(lambda: raw(ether(ip6(advertise()))), DHCP_REASON):
        yield "DHCPv6 advertise " + name, make


def harmless():
    def one(packet):
        return [(raw(ether(packet)), None)]

    yield "router solicitation", one(ip6(ICMPv6ND_RS(), ALL_NODES))
    yield "ping over IPv6", one(ip6(ICMPv6EchoRequest(data=b"ping"), ALL_NODES))
    yield "ping", one(ip4(ICMP(id=serial()) / Raw(b"ping")))
    yield "discover", one(ip4(UDP(sport=68, dport=67) / BOOTP(xid=serial()) / DHCP(
        options=[("message-type", "discover"), "end"])))
    yield "DHCPv6 solicit", one(ip6(UDP(sport=546, dport=547) / DHCP6_Solicit(trid=serial()), ALL_NODES))
    for dport in (53, 69, 545, 5353, 40000):
        yield "UDP to port %d" % dport, one(ip4(UDP(sport=67, dport=dport) / DNS(id=serial())))
        yield "UDP over IPv6 to port %d" % dport, one(ip6(UDP(sport=547, dport=dport) / DNS(id=serial()), ALL_NODES))
    whole = UDP(sport=40000, dport=40001) / Raw(b"x" * 64)
    yield "UDP in fragments", [(raw(ether(packet)), None) for packet in in_fragments(whole, [24])]


for SRC, DST in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    SRC_IP, DST_IP = link_local(SRC), link_local(DST)
    for trust, cases in [("ra", router_messages), ("ra", router_fragments), ("dhcp", dhcp_messages),
                         ("dhcp", dhcp6_messages), (None, harmless)]:
        for name, frames in cases():
            print(json.dumps({"src": SRC, "dst": DST, "name": name, "trust": trust,
                              "frames": [[frame.hex(), reason] for frame, reason in frames]}))
