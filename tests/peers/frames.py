"""Makes and parses frames with scapy, and prints one JSON object per line.

    frames.py write    makes frames of every type: {"name", "frame", "layers"}
    frames.py read     reads frames in hexadecimal, one per line: {"layers", "whole"}

"layers" contains the fields as scapy parses them, with the field names of the test that reads them. "whole" is true if
scapy rebuilds the same bytes from the fields without lengths and checksums: all lengths and checksums are correct.
"""

import ipaddress
import json
import random
import struct
import sys

from scapy.compat import raw
from scapy.contrib.geneve import GENEVE, GeneveOptions
from scapy.layers.inet import (ICMP, IP, TCP, UDP, IPOption_MTU_Probe, IPOption_NOP, IPOption_RR,
                               IPOption_Router_Alert, IPOption_Timestamp, TCPOptions)
from scapy.layers.inet6 import (ICMPv6DestUnreach, ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6MLReport2,
                                ICMPv6NDOptDstLLAddr, ICMPv6NDOptMTU, ICMPv6NDOptPrefixInfo, ICMPv6NDOptSrcLLAddr,
                                ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_RA, ICMPv6ND_Redirect,
                                ICMPv6ND_RS, ICMPv6PacketTooBig, ICMPv6ParamProblem, ICMPv6TimeExceeded, IPv6,
                                IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, PadN,
                                RouterAlert, icmp6ndoptscls)
from scapy.layers.l2 import ARP, GRE, Dot1AD, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import NoPayload, Padding, Raw, bind_layers

# The TPID of QinQ tags before IEEE 802.1ad. Scapy only supports 0x8100 and 0x88a8.
bind_layers(Ether, Dot1Q, type=0x9100)

EXTENSIONS = (IPv6ExtHdrHopByHop, IPv6ExtHdrDestOpt, IPv6ExtHdrRouting, IPv6ExtHdrFragment)

# ---- the fields of a frame ----


def received(packet):
    """The received bytes of a layer and of all later layers, without Ethernet padding."""
    return b"" if isinstance(packet, (NoPayload, Padding)) else packet.original


def describe(packet):
    layers = []
    while not isinstance(packet, (NoPayload, Padding)):
        packet = LAYERS.get(type(packet), payload)(packet, layers)
    return layers


def payload(packet, layers):
    if received(packet):
        layers.append({"layer": "payload", "bytes": received(packet).hex()})
    return NoPayload()


def ethernet(p, layers):
    layers.append({"layer": "ethernet", "dst": p.dst, "src": p.src, "type": p.type})
    return p.payload


def tag(p, layers):
    tpid = layers[-1]["type"]
    layers.append({"layer": "tag", "tpid": tpid, "pcp": p.prio, "dei": bool(p.id), "vid": p.vlan, "type": p.type})
    return p.payload


def arp(p, layers):
    layers.append({"layer": "arp", "operation": p.op, "sender_mac": p.hwsrc, "sender_ip": p.psrc,
                   "target_mac": p.hwdst, "target_ip": p.pdst})
    return NoPayload()


def ipv4(p, layers):
    more = bool(p.flags.MF)
    layers.append({"layer": "ipv4", "tos": p.tos, "payload_len": p.len - 4 * p.ihl, "ident": p.id,
                   "dont_fragment": bool(p.flags.DF), "more_fragments": more, "offset": 8 * p.frag, "ttl": p.ttl,
                   "protocol": p.proto, "src": p.src, "dst": p.dst,
                   "options": b"".join(raw(option) for option in p.options).hex()})
    return payload(p.payload, layers) if more or p.frag else p.payload


def ipv6(p, layers):
    ip = {"layer": "ipv6", "traffic_class": p.tc, "flow_label": p.fl, "payload_len": p.plen, "next_header": p.nh,
          "hop_limit": p.hlim, "src": p.src, "dst": p.dst, "extensions": "", "fragment": None}
    layers.append(ip)
    protocol, p = p.nh, p.payload
    while isinstance(p, EXTENSIONS):
        ip["extensions"] += p.original[:len(p.original) - len(p.payload.original)].hex()
        if isinstance(p, IPv6ExtHdrFragment):
            ip["fragment"] = {"offset": 8 * p.offset, "more": bool(p.m), "ident": p.id}
        protocol, p = p.nh, p.payload
    ip["protocol"] = protocol
    fragment = ip["fragment"]
    return payload(p, layers) if fragment and (fragment["offset"] or fragment["more"]) else p


def tcp(p, layers):
    options = []
    for name, value in p.options:
        kind = TCPOptions[1].get(name, name)
        if kind == 0:
            break
        options.append({"kind": kind, "data": option_data(name, kind, value).hex()})
    layers.append({"layer": "tcp", "src_port": p.sport, "dst_port": p.dport, "seq": p.seq, "ack": p.ack,
                   "flags": int(p.flags), "window": p.window, "urgent": p.urgptr, "options": options})
    return payload(p.payload, layers)


def option_data(name, kind, value):
    """The bytes of a TCP option. Scapy parses the values of options that it supports."""
    form = TCPOptions[0].get(kind, (name, None))[1]
    if name in ("NOP", "SAckOK"):
        return b""
    if name == "SAck":
        form = "!%dI" % len(value)
    if form is None:
        return value
    return struct.pack(form, *value) if isinstance(value, tuple) else struct.pack(form, value)


def udp(p, layers):
    layers.append({"layer": "udp", "src_port": p.sport, "dst_port": p.dport, "length": p.len,
                   "has_checksum": p.chksum != 0})
    return p.payload if isinstance(p.payload, (VXLAN, GENEVE)) else payload(p.payload, layers)


def icmpv4(p, layers):
    data = received(p.payload)
    message = {"layer": "icmpv4", "type": p.type, "code": p.code, "data": data.hex()}
    if p.type in (0, 8):
        message.update(ident=p.id, seq=p.seq)
    elif p.type == 3 and p.code == 4:
        message.update(mtu=p.nexthopmtu)
    elif p.type not in (3, 11):
        # The four bytes whose meaning depends on the type. Scapy has names for them only for some types.
        message.update(rest=p.original[4:8].hex(), data=p.original[8:].hex())
    layers.append(message)
    return NoPayload()


def icmpv6(p, layers):
    data = received(p)
    message = {"layer": "icmpv6", "type": data[0], "code": data[1]}
    if isinstance(p, (ICMPv6EchoRequest, ICMPv6EchoReply)):
        message.update(ident=p.id, seq=p.seq, data=p.data.hex())
    elif isinstance(p, (ICMPv6DestUnreach, ICMPv6TimeExceeded)):
        message.update(data=received(p.payload).hex())
    elif isinstance(p, ICMPv6PacketTooBig):
        message.update(mtu=p.mtu, data=received(p.payload).hex())
    elif isinstance(p, ICMPv6ParamProblem):
        message.update(pointer=p.ptr, data=received(p.payload).hex())
    elif isinstance(p, ICMPv6ND_RS):
        message.update(options=nd_options(p.payload))
    elif isinstance(p, ICMPv6ND_RA):
        message.update(hop_limit=p.chlim, flags=p.M << 7 | p.O << 6 | p.H << 5 | p.prf << 3 | p.P << 2 | p.res,
                       lifetime=p.routerlifetime, reachable=p.reachabletime, retransmit=p.retranstimer,
                       options=nd_options(p.payload))
    elif isinstance(p, ICMPv6ND_NS):
        message.update(target=p.tgt, options=nd_options(p.payload))
    elif isinstance(p, ICMPv6ND_NA):
        message.update(target=p.tgt, router=bool(p.R), solicited=bool(p.S), replace=bool(p.O),
                       options=nd_options(p.payload))
    elif isinstance(p, ICMPv6ND_Redirect):
        message.update(target=p.tgt, destination=p.dst, options=nd_options(p.payload))
    else:
        message.update(rest=data[4:8].hex(), data=data[8:].hex())
    layers.append(message)
    return NoPayload()


def nd_options(p):
    """The options one by one, because scapy stops at the first one that it does not support."""
    data, options = received(p), []
    while data:
        length = 8 * data[1]
        option = icmp6ndoptscls.get(data[0], Raw)(data[:length])
        if isinstance(option, (ICMPv6NDOptSrcLLAddr, ICMPv6NDOptDstLLAddr)):
            options.append({"type": option.type, "mac": option.lladdr})
        elif isinstance(option, ICMPv6NDOptMTU):
            options.append({"type": option.type, "mtu": option.mtu})
        elif isinstance(option, ICMPv6NDOptPrefixInfo):
            options.append({"type": option.type, "len": option.prefixlen, "on_link": bool(option.L),
                            "autonomous": bool(option.A), "valid": option.validlifetime,
                            "preferred": option.preferredlifetime, "prefix": option.prefix})
        else:
            options.append({"type": data[0], "data": data[2:length].hex()})
        data = data[length:]
    return options


def vxlan(p, layers):
    layers.append({"layer": "vxlan", "vni": p.vni})
    return p.payload


def geneve(p, layers):
    # Options are parsed one by one, because scapy 2.5 treats all bytes after the first option as
    # its payload.
    data, options = b"".join(raw(option) for option in p.options), []
    while data:
        length = 4 + 4 * GeneveOptions(data).length
        option = GeneveOptions(data[:length])
        if (option.classid, option.type) == (0x0102, 0x80):
            ingress, egress = struct.unpack("!HH", option.data)
            options.append({"ingress": ingress, "egress": egress})
        else:
            options.append({"class": option.classid, "type": option.type, "data": option.data.hex()})
        data = data[length:]
    layers.append({"layer": "geneve", "control": bool(p.oam), "critical": bool(p.critical), "protocol": p.proto,
                   "vni": p.vni, "options": options})
    return p.payload


def gre(p, layers):
    nvgre = None
    if p.proto == 0x6558 and p.key_present and not p.chksum_present and not p.seqnum_present:
        nvgre = {"vsid": p.key >> 8, "flow_id": p.key & 0xff}
    layers.append({"layer": "gre", "protocol": p.proto, "checksum": bool(p.chksum_present),
                   "key": p.key if p.key_present else None,
                   "sequence": p.sequence_number if p.seqnum_present else None, "nvgre": nvgre})
    return p.payload


LAYERS = {Ether: ethernet, Dot1Q: tag, Dot1AD: tag, ARP: arp, IP: ipv4, IPv6: ipv6, TCP: tcp, UDP: udp, ICMP: icmpv4,
          VXLAN: vxlan, GENEVE: geneve, GRE: gre}


def is_icmpv6(layer):
    return layer.__name__.startswith("ICMPv6") and not layer.__name__.startswith("ICMPv6NDOpt")


class Layers(dict):
    """Handles all ICMPv6 classes in the same way: scapy has one class per ICMPv6 type."""

    def get(self, layer, default=None):
        return icmpv6 if is_icmpv6(layer) else dict.get(self, layer, default)


LAYERS = Layers(LAYERS)


# The fields that scapy computes when they are not set.
AUTOMATIC = ("chksum", "cksum", "len", "plen", "ihl", "dataofs")


def is_whole(frame):
    """True when the frame's lengths and checksums equal those that scapy computes."""
    packet = Ether(frame)
    layer = packet
    while not isinstance(layer, (NoPayload, Padding)):
        # A packet quoted in an ICMP error may be truncated. A fragment has only a part of the bytes that its
        # checksum covers.
        if layer.name.endswith(("in ICMP", "in ICMPv6")):
            break
        for field in AUTOMATIC:
            zero_means_none = isinstance(layer, UDP) and field == "chksum" and layer.chksum == 0
            computes = isinstance(layer, (IP, IPv6, UDP, TCP, ICMP, GRE)) or is_icmpv6(type(layer))
            if field in layer.fields and computes and not zero_means_none:
                delattr(layer, field)
        if isinstance(layer, IP) and (layer.flags.MF or layer.frag):
            break
        if isinstance(layer, IPv6ExtHdrFragment) and (layer.m or layer.offset):
            break
        layer = layer.payload
    return raw(packet) == frame


# ---- frames of every type ----

random.seed(8926)
number = random.getrandbits


def mac():
    return "02:" + ":".join("%02x" % number(8) for _ in range(5))


def ip4():
    return str(ipaddress.IPv4Address(0x0a000000 | number(24)))


def ip6():
    return str(ipaddress.IPv6Address(0xfd << 120 | number(120)))


def port():
    """A port number that scapy does not assign to a protocol."""
    return random.randrange(20000, 30000)


def noise(longest=60):
    return random.randbytes(random.randrange(longest))


def ether():
    return Ether(src=mac(), dst=mac())


def ipv4_header(**fields):
    return IP(src=ip4(), dst=ip4(), tos=number(8), id=number(16), ttl=random.randrange(1, 256),
              flags=random.choice(["DF", 0]), **fields)


def ipv6_header(**fields):
    fields.setdefault("hlim", random.randrange(1, 256))
    return IPv6(src=ip6(), dst=ip6(), tc=number(8), fl=number(20), **fields)


def tcp_segment():
    options = [("MSS", number(16)), ("WScale", number(4)), ("SAckOK", b""), ("Timestamp", (number(32), number(32))),
               ("NOP", None), ("SAck", (number(32), number(32))), ("UTO", number(16)), ("TFO", (number(32), number(32))),
               (200, noise(6))]
    random.shuffle(options)
    chosen, length = [], 0
    for option in options[:random.randrange(len(options))]:
        length += 1 if option[0] == "NOP" else 2 + len(option_data(*kinded(option)))
        if length > 40:
            break
        chosen.append(option)
    return TCP(sport=port(), dport=port(), seq=number(32), ack=number(32), flags=number(8), window=number(16),
               urgptr=number(16), options=chosen) / Raw(noise())


def kinded(option):
    name, value = option
    return name, TCPOptions[1].get(name, name), value


def udp_datagram():
    return UDP(sport=port(), dport=port()) / Raw(noise())


def transport():
    return random.choice([tcp_segment, udp_datagram])()


def quoted(header):
    return Raw(raw(header() / udp_datagram())[:random.randrange(28, 60)])


def icmpv4_messages():
    yield ICMP(type="echo-request", id=number(16), seq=number(16)) / Raw(noise())
    yield ICMP(type="echo-reply", id=number(16), seq=number(16)) / Raw(noise())
    yield ICMP(type=3, code=4, nexthopmtu=number(16)) / quoted(ipv4_header)
    yield ICMP(type=3, code=random.choice([0, 1, 2, 3, 13])) / quoted(ipv4_header)
    yield ICMP(type=11, code=number(1)) / quoted(ipv4_header)
    yield ICMP(type=13, id=number(16), seq=number(16), ts_ori=number(32), ts_rx=number(32), ts_tx=number(32))


def nd_option_list(*options):
    packet = NoPayload()
    for option in options:
        packet = packet / option if not isinstance(packet, NoPayload) else option
    return packet


def icmpv6_messages():
    """ICMPv6 messages, each with the hop limit that it requires, or None."""
    yield ICMPv6EchoRequest(id=number(16), seq=number(16), data=noise()), None
    yield ICMPv6EchoReply(id=number(16), seq=number(16), data=noise()), None
    yield ICMPv6DestUnreach(code=number(2)) / quoted(ipv6_header), None
    yield ICMPv6PacketTooBig(mtu=number(32)) / quoted(ipv6_header), None
    yield ICMPv6TimeExceeded(code=number(1)) / quoted(ipv6_header), None
    yield ICMPv6ParamProblem(code=number(1), ptr=number(32)) / quoted(ipv6_header), None
    yield ICMPv6MLReport2(), 1
    source, target = ICMPv6NDOptSrcLLAddr(lladdr=mac()), ICMPv6NDOptDstLLAddr(lladdr=mac())
    unknown = Raw(bytes([200, 2]) + random.randbytes(14))
    prefix = ICMPv6NDOptPrefixInfo(prefix=ip6(), prefixlen=number(7), L=number(1), A=number(1),
                                   validlifetime=number(32), preferredlifetime=number(32))
    yield ICMPv6ND_RS() / source, 255
    yield ICMPv6ND_RS(), 255
    yield ICMPv6ND_RA(chlim=number(8), M=number(1), O=number(1), H=number(1), prf=number(2), P=number(1),
                      routerlifetime=number(16), reachabletime=number(32),
                      retranstimer=number(32)) / source / ICMPv6NDOptMTU(mtu=number(32)) / prefix / unknown, 255
    yield ICMPv6ND_NS(tgt=ip6()) / source, 255
    yield ICMPv6ND_NS(tgt=ip6()) / unknown / source, 255
    yield ICMPv6ND_NA(tgt=ip6(), R=number(1), S=number(1), O=number(1)) / target, 255
    yield ICMPv6ND_Redirect(tgt=ip6(), dst=ip6()) / target, 255


def extension_chains():
    hop = IPv6ExtHdrHopByHop(options=[RouterAlert(value=0)])
    destination = IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(random.randrange(30)))])
    routing = IPv6ExtHdrRouting(segleft=0, addresses=[ip6()])
    atomic = IPv6ExtHdrFragment(id=number(32))
    yield hop
    yield destination
    yield routing
    yield atomic
    yield hop / destination / routing / atomic / destination.copy()
    yield hop.copy() / routing.copy() / destination.copy()


def ip_packets():
    """Yields a name and an IP packet for every packet type except tunnels.

    No packet has a source route: its checksum covers the final address, not the destination in the header.
    """
    for options in ([], [IPOption_NOP()], [IPOption_RR(routers=[ip4(), ip4()])], [IPOption_Router_Alert(alert=0)],
                    [IPOption_NOP(), IPOption_MTU_Probe(mtu=number(16)), IPOption_RR(routers=[ip4()])],
                    [IPOption_Timestamp(flg=0, timestamp=number(32))]):
        yield "ipv4 options", ipv4_header(options=options) / transport()
    for flags, offset in (("MF", 0), ("MF", 185), (0, 8000)):
        yield "ipv4 fragment", IP(src=ip4(), dst=ip4(), id=number(16), flags=flags, frag=offset,
                                  proto=17) / Raw(random.randbytes(64))
    yield "ipv4 protocol", ipv4_header(proto=253) / Raw(noise())
    yield "ipv4 udp without checksum", ipv4_header() / UDP(sport=port(), dport=port(), chksum=0) / Raw(noise())
    for message in icmpv4_messages():
        yield "icmpv4", ipv4_header() / message
    yield "ipv6", ipv6_header() / transport()
    for extensions in extension_chains():
        yield "ipv6 extensions", ipv6_header() / extensions / transport()
    yield "ipv6 extensions", ipv6_header() / IPv6ExtHdrDestOpt() / ICMPv6EchoRequest(id=number(16), data=noise())
    for more, offset in ((1, 0), (1, 5), (0, 7)):
        fragment = IPv6ExtHdrFragment(id=number(32), m=more, offset=offset, nh=17)
        yield "ipv6 fragment", ipv6_header() / fragment / Raw(random.randbytes(32))
    yield "ipv6 protocol", ipv6_header(nh=59)
    for message, hop_limit in icmpv6_messages():
        fields = {} if hop_limit is None else {"hlim": hop_limit}
        yield "icmpv6", ipv6_header(**fields) / message
    for _ in range(6):
        yield "tcp", ipv4_header() / tcp_segment()
        yield "tcp", ipv6_header() / tcp_segment()
        yield "udp", ipv4_header() / udp_datagram()
        yield "udp", ipv6_header() / udp_datagram()


def plain_frames():
    """Yields a name and a frame for every frame type except tunnels."""
    yield "ethernet", ether() / Raw(noise()) if number(1) else Ether(src=mac(), dst=mac(), type=0x88b5) / Raw(b"x")
    for _ in range(4):
        yield "ethernet", Ether(src=mac(), dst=mac(), type=0x88b5) / Raw(random.randbytes(40))
    for op in (1, 2, 3, 8):
        yield "arp", ether() / ARP(op=op, hwsrc=mac(), hwdst=mac(), psrc=ip4(), pdst=ip4())
    for name, packet in ip_packets():
        yield name, ether() / packet
    for tpid, inner in ((0x8100, None), (0x88a8, None), (0x9100, None), (0x88a8, 0x8100), (0x9100, 0x8100),
                        (0x8100, 0x8100), (0x88a8, 0x88a8)):
        for packet in (ipv4_header() / transport(), ipv6_header() / transport(), ARP(psrc=ip4(), pdst=ip4())):
            yield "tags", Ether(src=mac(), dst=mac(), type=tpid) / tags(tpid, inner) / packet


def tags(tpid, inner):
    outer = (Dot1AD if tpid == 0x88a8 else Dot1Q)(prio=number(3), id=number(1), vlan=number(12))
    if inner is None:
        return outer
    outer.type = inner
    return outer / (Dot1AD if inner == 0x88a8 else Dot1Q)(prio=number(3), id=number(1), vlan=number(12))


def inner_frame():
    return ether() / random.choice([ipv4_header, ipv6_header])() / transport()


def underlay():
    return ether() / random.choice([ipv4_header, ipv6_header])()


def geneve_options():
    logical_ports = GeneveOptions(classid=0x0102, type=0x80, data=struct.pack("!HH", number(15), number(16)))
    harmless = GeneveOptions(classid=number(15), type=number(7), data=random.randbytes(4 * number(4)))
    empty = GeneveOptions(classid=0xffff, type=1, data=b"")
    yield False, []
    yield True, [logical_ports]
    yield False, [harmless, empty]
    yield True, [empty, logical_ports, harmless]
    yield False, [GeneveOptions(classid=2, type=3, data=bytes(124)),
                  GeneveOptions(classid=2, type=4, data=bytes(120))]


def tunnelled_frames():
    def to(destination, **fields):
        return UDP(sport=random.randrange(49152, 65536), dport=destination, **fields)

    for _ in range(8):
        yield "vxlan", underlay() / to(4789) / VXLAN(flags="Instance", vni=number(24)) / inner_frame()
    yield "vxlan", (ether() / ipv4_header() / to(4789, chksum=0) / VXLAN(flags="Instance", vni=number(24))
                    / inner_frame())
    for _ in range(3):
        for critical, options in geneve_options():
            # The option length is set explicitly, because scapy 2.5 computes it with one bit too
            # few.
            words = sum(len(raw(option)) for option in options) // 4
            header = GENEVE(vni=number(24), critical=critical, oam=number(1), options=options, optionlen=words)
            yield "geneve", underlay() / to(6081) / header / inner_frame()
    yield "geneve", underlay() / to(6081) / GENEVE(vni=7, proto=0x0800) / ipv4_header() / transport()
    yield "geneve", underlay() / to(6081) / GENEVE(vni=7, proto=0x86dd) / ipv6_header() / transport()
    for flags in range(8):
        fields = {}
        if flags & 1:
            fields.update(chksum_present=1)
        if flags & 2:
            fields.update(key_present=1, key=number(32))
        if flags & 4:
            fields.update(seqnum_present=1, sequence_number=number(32))
        yield "gre", underlay() / GRE(proto=0x6558, **fields) / inner_frame()
        yield "gre", underlay() / GRE(proto=0x0800, **fields) / ipv4_header() / transport()
        yield "gre", underlay() / GRE(proto=0x86dd, **fields) / ipv6_header() / transport()
    for _ in range(4):
        yield "nvgre", underlay() / GRE(proto=0x6558, key_present=1, key=number(24) << 8 | number(8)) / inner_frame()


def frames():
    for generate in (plain_frames, plain_frames, tunnelled_frames, tunnelled_frames):
        for name, packet in generate():
            yield name, raw(packet)


def write():
    for name, frame in frames():
        assert is_whole(frame), name
        # Ethernet senders pad short frames to 60 bytes.
        padded = frame + bytes(max(0, 60 - len(frame))) if number(1) and name != "ethernet" else frame
        print(json.dumps({"name": name, "frame": padded.hex(), "unpadded_len": len(frame),
                          "layers": describe(Ether(padded))}))


def read():
    for line in sys.stdin:
        frame = bytes.fromhex(line)
        print(json.dumps({"layers": describe(Ether(frame)), "whole": is_whole(frame)}))


{"write": write, "read": read}[sys.argv[1]]()
