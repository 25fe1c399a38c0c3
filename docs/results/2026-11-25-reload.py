#!/usr/bin/python3
"""Measures a reload under many megaflows, for two binaries of weft in turn.

    2026-11-25-reload.py ROUNDS BEFORE AFTER     (root; BEFORE and AFTER are programs `weft`)

Four hostile guests fill the cache with about 164,000 megaflows. Then access control lists forbid their packets and UDP
port 7777, which a guest without other traffic uses. Another flow stays permitted. Prints a line of JSON for each run:
how long forbidden packets passed after `weft reload` was started, how long the reload took, and how many packets the
permitted flow lost.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

NS = "wfm"
PORTS = [1000 + 2 * n for n in range(512)]
SOURCES = ["10.9.%d.%d" % (n // 128, 2 * (n % 128)) for n in range(512)]
GUESTS = ["v", "p", "f", "a1", "a2", "a3", "a4"]
WANTED = 164_000


def mac(guest):
    return "02:00:00:00:77:%02x" % (GUESTS.index(guest) + 1)


def ip(guest):
    return "10.8.0.%d" % (GUESTS.index(guest) + 1)


def inet_sum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


# ---- what runs in the guests ----


def hostile(guest, first, count, seconds):
    """Sends one packet for each pair of a source address and a port, over and over."""
    bare = [bytes(int(byte, 16) for byte in mac(each).split(":")) for each in ("v", guest)]
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    out.bind(("eth0", 0))
    headers = []
    for source in SOURCES:
        plain = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 29, 0, 0, 64, 17, 0, socket.inet_aton(source),
                            socket.inet_aton(ip("v")))
        headers.append(bare[0] + bare[1] + b"\x08\x00" + plain[:10] + struct.pack("!H", inet_sum(plain)) + plain[12:])
    datagrams = [struct.pack("!HHHHB", 40000, port, 9, 0, 0) for port in PORTS]
    end = time.monotonic() + seconds
    at, sent = first, 0
    begin = time.monotonic()
    while time.monotonic() < end:
        for _ in range(20):
            try:
                out.send(headers[at % 512] + datagrams[at // 512 % 512])
            except OSError:
                time.sleep(0.001)
            at += 1
            if at == first + count:
                at = first
        sent += 20
        ahead = begin + sent / 8000 - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)


def flow(port, seconds):
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.connect((ip("v"), port))
    begin, sent = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        try:
            out.send(struct.pack("!Q", sent))
            sent += 1
        except OSError:
            pass
        time.sleep(max(0.0, begin + sent / 1000 - time.monotonic()))
    print(sent)


def sink(port, seconds):
    """Prints the time of the last packet of each sender, and how many came."""
    into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    into.bind(("", port))
    into.settimeout(0.1)
    last, count = {}, {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            _, (sender, _) = into.recvfrom(100)
        except TimeoutError:
            continue
        last[sender] = time.monotonic()
        count[sender] = count.get(sender, 0) + 1
    print(json.dumps({"last": last, "count": count}))


def sniff(seconds):
    """Prints the time of the last packet from 10.9.0.0/16."""
    into = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    into.bind(("eth0", 0x0800))
    into.settimeout(0.1)
    last = 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            packet = into.recv(20)
        except TimeoutError:
            continue
        if packet[12:14] == b"\x0a\x09":
            last = time.monotonic()
    print(last)


# ---- the measurement ----


def sh(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def inside(name, *command, **options):
    return subprocess.Popen(["ip", "netns", "exec", "%s-%s" % (NS, name), *command], stdout=subprocess.PIPE, text=True,
                            **options)


def role(name, *arguments):
    return inside(name, sys.executable, os.path.abspath(__file__), "--role", *map(str, arguments))


def network(forbids):
    text = "tunnel = \"geneve\"\n[[host]]\nname = \"h1\"\nuplink = \"up0\"\nunderlay = [\"192.0.2.1\"]\n"
    text += "[[logical_switch]]\nname = \"blue\"\nvni = 1\nmtu = 1400\n"
    for guest in GUESTS:
        text += ("[[logical_switch.port]]\nname = \"%s\"\nhost = \"h1\"\nmac = \"%s\"\naddresses = [\"%s/8\"]\n"
                 "device = { interface = \"vif-%s\" }\n" % (guest, mac(guest), ip(guest), guest))
    text += "[address_set]\nsome = [%s]\n" % ", ".join("\"%s\"" % source for source in SOURCES)
    acl = "[[acl]]\nswitch = \"blue\"\ndirection = \"%s\"\npriority = %d\nmatch = '%s'\naction = \"%s\"\n"
    text += acl % ("from-port", 10, "udp.dst == {%s}" % ", ".join(map(str, PORTS)), "allow")
    text += acl % ("to-port", 10, "ip4.src == $some", "allow")
    if forbids:
        text += acl % ("from-port", 20, "udp.dst == 7777 || ip4.src == $some", "drop")
    return text


def build():
    sh("ip", "netns", "add", NS + "-h")
    host = ["ip", "-n", NS + "-h"]
    sh(*host, "link", "add", "up0", "type", "veth", "peer", "name", "up1")
    sh(*host, "addr", "add", "192.0.2.1/24", "dev", "up0")
    for device in ("up0", "up1", "lo"):
        sh(*host, "link", "set", device, "up")
    for guest in GUESTS:
        name = "%s-%s" % (NS, guest)
        sh("ip", "netns", "add", name)
        sh(*host, "link", "add", "vif-" + guest, "mtu", "1400", "type", "veth", "peer", "name", "eth0", "address",
           mac(guest), "mtu", "1400", "netns", name)
        sh("ip", "netns", "exec", NS + "-h", "sysctl", "-qw", "net.ipv6.conf.vif-%s.disable_ipv6=1" % guest)
        sh(*host, "link", "set", "vif-" + guest, "up")
        sh("ip", "-n", name, "addr", "add", ip(guest) + "/8", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "eth0", "up")
        for other in GUESTS:
            if other != guest:
                sh("ip", "-n", name, "neigh", "replace", ip(other), "lladdr", mac(other), "dev", "eth0")


def tear_down():
    for name in ["h", *GUESTS]:
        subprocess.run(["ip", "netns", "del", "%s-%s" % (NS, name)], check=False, stderr=subprocess.DEVNULL)


def show(weft, control):
    shown = inside("h", weft, "show", "--json", "--control", control)
    return json.loads(shown.communicate(timeout=60)[0])


def megaflows(weft, control):
    return show(weft, control)["megaflows"]["megaflows"]


def measure(weft, datapath, scratch):
    control, before, after = (os.path.join(scratch, name) for name in ("sock", "a.toml", "b.toml"))
    for path, forbids in [(before, False), (after, True)]:
        with open(path, "w") as file:
            file.write(network(forbids))
    daemon = inside("h", weft, "run", "--host", "h1", "--control", control, "--datapath", datapath, "--idle", "600",
                    before, stderr=subprocess.DEVNULL)
    running = [daemon]
    try:
        time.sleep(3)
        seconds = 60
        sinks = {port: role("v", "sink", port, seconds) for port in (7777, 5000)}
        flows = {name: role(name, "flow", port, seconds - 5)
                 for name, port in [("p", 5000), ("f", 7777)]}
        sniffer = role("v", "sniff", seconds)
        # A port may have as many megaflows as are left for the others: 1/2, 1/4, 1/8, ...
        first, attackers = 0, []
        for number, count in enumerate([95_000, 45_000, 18_000, 7_000]):
            guest = "a%d" % (number + 1)
            attackers.append(role(guest, "hostile", guest, first, count, 45))
            first += count
        running += [sniffer, *sinks.values(), *flows.values(), *attackers]
        end = time.monotonic() + 42
        while megaflows(weft, control) < WANTED and time.monotonic() < end:
            time.sleep(0.5)
        there = megaflows(weft, control)
        start = time.monotonic()
        inside("h", weft, "reload", "--control", control, after).communicate(timeout=60)
        took = time.monotonic() - start
        results = {port: json.loads(one.communicate(timeout=90)[0]) for port, one in sinks.items()}
        sent = int(flows["p"].communicate(timeout=90)[0])
        shown = show(weft, control)
        drops = {port["name"]: port["drops"] for port in shown["ports"]}
        hostile_last = float(sniffer.communicate(timeout=90)[0])
        return {
            "datapath": datapath, "megaflows": there, "reload_s": round(took, 3),
            "forbidden_flow_s": round(results[7777]["last"][ip("f")] - start, 3),
            "forbidden_hostile_s": round(hostile_last - start, 3),
            "permitted_sent": sent, "permitted_lost": sent - results[5000]["count"][ip("p")],
            "dropped_of_permitted_port": drops["p"], "dropped_at_uplink": shown["uplink"]["drops"],
        }
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(timeout=30)


def main(rounds, *programs):
    tear_down()
    build()
    try:
        for number in range(int(rounds)):
            for datapath in ("kernel", "user"):
                for name, weft in zip(("before", "after"), programs):
                    with tempfile.TemporaryDirectory() as scratch:
                        row = measure(os.path.abspath(weft), datapath, scratch)
                    print(json.dumps({"round": number, "weft": name, **row}), flush=True)
    finally:
        tear_down()


if sys.argv[1] == "--role":
    kind, *rest = sys.argv[2:]
    {"hostile": lambda guest, *numbers: hostile(guest, *map(int, numbers)),
     "flow": lambda *numbers: flow(*map(int, numbers)),
     "sniff": lambda seconds: sniff(int(seconds)),
     "sink": lambda *numbers: sink(*map(int, numbers))}[kind](*rest)
else:
    main(*sys.argv[1:])
