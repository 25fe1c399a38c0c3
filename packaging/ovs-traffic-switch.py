#!/usr/bin/python3
"""Runs weft under the names of ovs-vswitchd and ovs-ofctl, for `cargo xtask ovs-traffic-tests`.

Called as `ovs-vswitchd`, this script starts weft and stays as its keeper. The tests configure bridges
and ports in a real ovsdb-server, with a real ovs-vsctl. The keeper follows the database: it writes a
network file with the same bridges and ports, reloads weft, and confirms this in the database.
It responds to ovs-appctl with data from weft's control socket.

Called as `ovs-ofctl`, the script calls `weft ofctl`, whose arguments and output are those of
ovs-ofctl. The ovs-ofctl of Open vSwitch converts flows to the syntax of the OpenFlow version
that the test requests.

The script emulates no features: if weft lacks one, the command fails, and so does the test.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time

from switch_keeper import CONTROL, KEEPER, PATIENCE_S, RUNDIR, Keeper, Refused, detach, read_pid

NETWORK = os.path.join(RUNDIR, "network.toml")
# The delay of flow counters is up to half a second.
COUNTERS_S = 0.6
# The OpenFlow number of a bridge's local port, which exists in the database, but not in weft.
LOCAL = 65534
# The port types of Open vSwitch, and the device type of each in weft's network file.
DEVICES = {"": "interface", "system": "interface", "internal": "tap", "patch": "interface"}
# How long the database may take to reply, in seconds.
DATABASE_S = 10


class Database:
    """A client of ovsdb-server."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DATABASE_S)
        self.socket.connect(path)
        self.received = ""
        self.last = 0

    def send(self, message):
        self.socket.sendall(json.dumps(message).encode())

    def message(self):
        """The next message. No byte separates messages."""
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self.received)
                self.received = self.received[end:].lstrip()
                return value
            except ValueError:
                received = self.socket.recv(65536)
                if not received:
                    raise ConnectionError("ovsdb-server has gone") from None
                self.received += received.decode()

    def transact(self, *operations):
        self.last += 1
        parameters = ["Open_vSwitch", *operations]
        self.send({"method": "transact", "params": parameters, "id": self.last})
        while True:
            message = self.message()
            if message.get("method") == "echo":
                self.send({"id": message["id"], "result": message["params"], "error": None})
            elif message.get("id") == self.last:
                results = message["result"]
                for result in results:
                    if result and "error" in result:
                        raise ValueError(result)
                return results

    def rows(self, *tables):
        found = self.transact(*[{"op": "select", "table": name, "where": []} for name in tables])
        return [result["rows"] for result in found]


def members(value):
    """The members of a column that holds a set."""
    if isinstance(value, list) and value[0] == "set":
        return [plain(member) for member in value[1]]
    return [plain(value)]


def plain(value):
    return value[1] if isinstance(value, list) and value[0] == "uuid" else value


class Switch:
    """The bridges and ports of the database, and their numbers."""

    def __init__(self):
        # Port numbers: a dictionary for each bridge, with the interfaces' names as keys.
        self.numbers = {}

    def follow(self, bridges, ports, interfaces):
        """Returns the text of the network file, and the ofport and error of each interface."""
        ports = {plain(row["_uuid"]): row for row in ports}
        interfaces = {plain(row["_uuid"]): row for row in interfaces}
        text = '[[host]]\nname = "test"\nuplink = "lo"\n'
        states, numbers = {}, {}
        for bridge in sorted(bridges, key=lambda row: row["name"]):
            name = bridge["name"]
            old, kept = self.numbers.get(name, {}), {}
            text += f'\n[[bridge]]\nname = "{name}"\nhost = "test"\n'
            found = [
                interfaces[interface]
                for port in members(bridge["ports"])
                for interface in members(ports[port]["interfaces"])
            ]
            for interface in sorted(found, key=lambda row: row["name"]):
                device, kind = interface["name"], interface["type"]
                uuid = plain(interface["_uuid"])
                if device == name:
                    states[uuid] = (LOCAL, None)
                    continue
                if kind not in DEVICES:
                    states[uuid] = (-1, f"weft has no ports of type {kind}")
                    continue
                wanted = members(interface["ofport_request"])
                taken = [*old.values(), *kept.values(), 0]
                number = old.get(device) or (wanted[0] if wanted else max(taken) + 1)
                kept[device] = number
                states[uuid] = (number, None)
                text += f'\n  [[bridge.port]]\n  name = "{device}"\n  number = {number}\n'
                text += f'  device = {{ {DEVICES[kind]} = "{device}" }}\n'
            numbers[name] = kept
        self.numbers = numbers
        return text, states


def connect_patches(interfaces):
    """Connects bridges with veth devices, because weft's network file has no patch ports."""
    peers = {
        row["name"]: dict(row["options"][1]).get("peer")
        for row in interfaces
        if row["type"] == "patch"
    }
    for name, peer in peers.items():
        if peers.get(peer) != name or os.path.exists(f"/sys/class/net/{name}"):
            continue
        veth = ["type", "veth", "peer", "name", peer]
        subprocess.run(["ip", "link", "add", "name", name, *veth], check=True)
        for device in (name, peer):
            subprocess.run(["ip", "link", "set", "dev", device, "up"], check=True)


def ask(request):
    """Sends a request to weft. Returns the reply, or the rows of a stream."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(CONTROL)
        client.sendall(json.dumps(request).encode() + b"\n")
        rows = []
        for line in client.makefile():
            message = json.loads(line)
            if "error" in message:
                raise Refused(message["error"])
            if "row" in message:
                rows.append(message["row"])
            elif "end" in message:
                return rows
            elif request["command"] != "connections":
                return message["ok"]
    raise Refused("weft gave no answer")


def ends(side):
    text = f"src={side['src']},dst={side['dst']}"
    if side["icmp_type"] is not None:
        return f"{text},id={side['icmp_id']},type={side['icmp_type']},code={side['icmp_code']}"
    return f"{text},sport={side['src_port'] or 0},dport={side['dst_port'] or 0}"


def connection(row):
    """A line of `dpctl/dump-conntrack`."""
    protocol = {"icmp6": "icmpv6"}.get(row["protocol"], row["protocol"])
    text = f"{protocol},orig=({ends(row['original'])}),reply=({ends(row['reply'])})"
    # The zone number within the bridge. weft shows the zone as `br0 zone 5`.
    zone = int((row["user"] or "0").split()[-1])
    if zone:
        text += f",zone={zone}"
    if row["mark"]:
        text += f",mark={row['mark']}"
    label = int(row["label"], 16)
    if label:
        text += f",labels={label:#x}"
    if protocol == "tcp":
        text += f",protoinfo=(state={row['state']})"
    return zone, text


def zone_of(method, arguments):
    """The zone of the arguments `[zone=ZONE]`, or None."""
    if not arguments:
        return None
    if len(arguments) == 1 and arguments[0].startswith("zone="):
        return int(arguments[0].removeprefix("zone="))
    raise Refused(f"{method}: weft has no `{' '.join(arguments)}`")


class BridgeKeeper(Keeper):
    abilities = [
        "Datapath supports ct_clear action",
        "VLAN header stack length probed as 2",
    ]

    def __init__(self):
        super().__init__()
        self.database = Database(os.path.join(RUNDIR, "db.sock"))
        self.switch = Switch()
        self.network = None
        # The number of the configuration that weft currently uses.
        self.number = None
        self.write_network(self.switch.follow([], [], [])[0])

    def arguments(self):
        return ["--host", "test", NETWORK]

    def write_network(self, text):
        with open(NETWORK + ".new", "w", encoding="ascii") as file:
            file.write(text)
        os.rename(NETWORK + ".new", NETWORK)
        self.network = text

    def turn(self):
        """Follows the database when weft responds."""
        try:
            ask({"command": "pools"})
            [overview] = self.database.rows("Open_vSwitch")
            if not overview or overview[0]["next_cfg"] == self.number:
                return
            self.follow(overview[0]["next_cfg"])
        except OSError:
            return
        except (Refused, ValueError, KeyError, subprocess.CalledProcessError) as error:
            self.say(f"keeper|ERR|weft: {error!r}")

    def follow(self, number):
        rows = self.database.rows("Bridge", "Port", "Interface")
        connect_patches(rows[2])
        text, states = self.switch.follow(*rows)
        if text != self.network:
            self.write_network(text)
            ask({"command": "reload", "network": NETWORK})
        changes = [
            {
                "op": "update",
                "table": "Interface",
                "where": [["_uuid", "==", ["uuid", uuid]]],
                "row": {"ofport": ofport, "error": ["set", [error] if error else []]},
            }
            for uuid, (ofport, error) in states.items()
        ]
        done = {"op": "update", "table": "Open_vSwitch", "where": [], "row": {"cur_cfg": number}}
        self.database.transact(*changes, done)
        self.number = number

    def reply(self, method, arguments):
        if method == "version":
            return "ovs-vswitchd (weft)\n"
        if method == "vlog/set":
            # The log levels of Open vSwitch do not affect weft's log.
            return ""
        if method == "revalidator/purge":
            # Waits until the counters are up to date, because tests read them next.
            time.sleep(COUNTERS_S)
            return ""
        if method == "dpctl/dump-conntrack":
            wanted = zone_of(method, arguments)
            found = [connection(row) for row in ask({"command": "connections"})]
            return "".join(text + "\n" for zone, text in found if wanted in (None, zone))
        if method == "dpctl/flush-conntrack":
            wanted = zone_of(method, arguments)
            zones = [None] if wanted is None else [f"{name} zone {wanted}" for name in
                                                   self.switch.numbers]
            for zone in zones:
                ask({"command": "flush_connections", "filter": {"zone": zone}})
            return ""
        raise Refused(f"{method}: weft does not have it")


# The ovs-ofctl of Open vSwitch.
OFCTL = "/usr/bin/ovs-ofctl"
# The words that precede a flow in the output of `dump-flows`.
STATISTICS = re.compile(r" (cookie=\S+ |duration=\S+ |table=\S+ |n_packets=\S+ |n_bytes=\S+ )*")

# Options of ovs-ofctl that this script accepts and ignores.
QUIET = ("--bundle", "--names", "--no-names")


class Ofctl:
    """A call of ovs-ofctl."""

    def __init__(self, words):
        self.version, self.strict, self.statistics, self.words = None, [], True, []
        words = list(words)
        while words:
            word = words.pop(0)
            if word == "-O":
                self.version = words.pop(0)
            elif word.startswith("--protocols="):
                self.version = word.split("=", 1)[1]
            elif word == "--strict":
                self.strict = [word]
            elif word == "--no-stats":
                self.statistics = False
            elif word in QUIET or word.startswith("-v"):
                continue
            else:
                self.words.append(word)

    def weft(self, command, *words):
        """Runs `weft ofctl`. Returns its output, or exits with its exit code."""
        words = [os.environ["WEFT"], "ofctl", command, "--control", CONTROL, *words]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        return done.stdout

    def run(self):
        command, *words = self.words
        if command in ("add-flow", "add-flows", "replace-flows"):
            self.weft(command, *words)
        elif command in ("mod-flows", "del-flows"):
            self.weft(command, *self.strict, *words)
        elif command == "dump-flows":
            self.dump_flows(words)
        elif command == "packet-out":
            self.packet_out(words)
        elif command == "bundle":
            self.bundle(*words)
        else:
            sys.exit(f"ovs-ofctl: weft does not have `{command}`")

    def dump_flows(self, words):
        time.sleep(COUNTERS_S)
        lines = self.weft("dump-flows", *words).splitlines()
        if self.version:
            number = self.version.removeprefix("OpenFlow")
            print(f"OFPST_FLOW reply (OF{number[0]}.{number[1:]}) (xid=0x2):")
        else:
            print("NXST_FLOW reply (xid=0x4):")
        statistics = [STATISTICS.match(line)[0] for line in lines]
        flows = [line.removeprefix(start) for line, start in zip(lines, statistics)]
        for start, flow in zip(statistics, self.in_words_of_version(flows)):
            # In the oldest OpenFlow version, the age follows the counters.
            age = "" if self.version else "idle_age=0, "
            print(start + age + flow)

    def in_words_of_version(self, flows):
        """The flows in the syntax that ovs-ofctl uses for the requested OpenFlow version."""
        version = ["-O", self.version] if self.version else []
        done = subprocess.run(
            [OFCTL, *version, "parse-flows", "-"], input="\n".join(flows), stdout=subprocess.PIPE,
            text=True, check=True,
        )
        found = [line.partition(": ADD ")[2] for line in done.stdout.splitlines() if ": ADD " in line]
        # Without a table, the output for this version contains table 255.
        return [flow.removeprefix("table:255 ") for flow in found]

    def packet_out(self, words):
        if len(words) == 4:
            # The arguments are BRIDGE IN_PORT ACTIONS PACKET.
            bridge, port, actions, packet = words
            words = [bridge, f"in_port={port} packet={packet} actions={actions}"]
        self.weft("packet-out", *words)

    def bundle(self, bridge, path):
        with open(path, encoding="ascii") as file:
            for line in file:
                kind, _, rest = line.strip().partition(" ")
                if kind == "packet-out":
                    self.weft("packet-out", bridge, rest.strip())
                elif kind == "flow":
                    self.weft("add-flow", bridge, rest.strip())
                elif kind:
                    sys.exit(f"ovs-ofctl: weft has no bundles with `{kind}`")


def main():
    if os.path.basename(sys.argv[0]) == "ovs-ofctl":
        Ofctl(sys.argv[1:]).run()
        return
    detach(lambda keeper: read_pid(KEEPER) == keeper and os.path.exists(CONTROL))
    BridgeKeeper().run()


if __name__ == "__main__":
    main()
