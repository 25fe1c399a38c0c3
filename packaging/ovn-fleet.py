#!/usr/bin/env python3
"""Measures many chassis at a southbound cluster of three servers: what they cost the servers, and
how long they are disconnected when the leader is killed. `cargo xtask ovn-fleet` calls this script.

    ovn-fleet.py DIRECTORY WEFT --chassis N --switches N --ports N --changes N --seconds N --peers N
        --kills N --together N [--all] [--hang]

DIRECTORY must be empty; it keeps the logs. WEFT is the program. --together is the number of chassis
that start at a time. Everything runs in separate namespaces, which end with the script together
with all processes and devices in them. Prints "figure PHASE NAME VALUE" for each figure.
"""

import argparse
import calendar
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

SERVERS = (1, 2, 3)
SCHEMAS = "/usr/share/ovn", "/usr/share/openvswitch"
PER_ROUTER = 10  # switches behind a router
HOSTS_PER_SWITCH = 4
SERVERS_NICE = -15  # as if the chassis ran on other machines
LEAST_FREE_KB = 1_500_000
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def say(text):
    print(time.strftime("%H:%M:%S", time.gmtime()), text, flush=True)


def fail(text):
    raise SystemExit(f"FAILED {text}")


def run(*command, timeout=60, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))[:300]}: {done.stderr.strip()[:500]}")
    return done.stdout


def within(seconds, what, condition):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            fail(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def median(values):
    return sorted(values)[len(values) // 2] if values else 0


def free_kb():
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(re.search(r"MemAvailable:\s+(\d+)", file.read())[1])


class Process:
    """A background process, with its log."""

    def __init__(self, log, *command, environment=None, nice=0):
        with open(log, "ab") as file:
            self.child = subprocess.Popen(
                ["nice", "-n", str(nice), *command], stdin=subprocess.DEVNULL, stdout=file,
                stderr=file, env={**os.environ, **(environment or {})})
        self.log = log
        self.last_ms = 0.0

    def processor_ms(self):
        """Processor time since the start of the process, also after its end."""
        try:
            with open(f"/proc/{self.child.pid}/stat", encoding="ascii") as file:
                fields = file.read().rpartition(")")[2].split()
            self.last_ms = (int(fields[11]) + int(fields[12])) * TICK_MS
        except OSError:
            pass
        return self.last_ms

    def memory_kb(self, key):
        with open(f"/proc/{self.child.pid}/status", encoding="ascii") as file:
            return int(re.search(rf"^{key}:\s+(\d+)", file.read(), re.MULTILINE)[1])

    def end(self, how=signal.SIGTERM):
        if self.child.poll() is None:
            self.child.send_signal(how)

    def wait(self, seconds):
        try:
            self.child.wait(max(seconds, 0.01))
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


class Watcher:
    """Follows `nb_cfg` of all chassis at one server."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 5)
        self.text, self.decoder = "", json.JSONDecoder()
        self.names, self.global_cfg = {}, 0
        columns = {"Chassis_Private": {"columns": ["name", "nb_cfg"]},
                   "SB_Global": {"columns": ["nb_cfg"]}}
        self.send({"id": 0, "method": "monitor", "params": ["OVN_Southbound", "w", columns]})
        self.until(lambda: False, 1)

    def send(self, message):
        self.socket.sendall(json.dumps(message).encode())

    def receive(self, wait):
        if not select.select([self.socket], [], [], max(wait, 0))[0]:
            return
        received = self.socket.recv(1 << 20)
        if not received:
            fail("a surviving server has closed a connection")
        self.text += received.decode()
        while self.text.lstrip():
            try:
                message, end = self.decoder.raw_decode(self.text.lstrip())
            except ValueError:
                return
            self.text = self.text.lstrip()[end:]
            self.handle(message)

    def handle(self, message):
        if message.get("method") == "echo":
            self.send({"id": message["id"], "result": message["params"], "error": None})
        elif message.get("method") == "update":
            self.apply(message["params"][1])
        elif message.get("id") == 0:
            self.apply(message["result"])

    def apply(self, tables):
        for uuid, change in tables.get("Chassis_Private", {}).items():
            if "new" in change:
                self.names[uuid] = change["new"]["name"], change["new"]["nb_cfg"]
            else:
                self.names.pop(uuid, None)
        for change in tables.get("SB_Global", {}).values():
            self.global_cfg = change["new"]["nb_cfg"]

    def ask_for(self, cfg):
        operation = {"op": "update", "table": "SB_Global", "where": [], "row": {"nb_cfg": cfg}}
        self.send({"id": 1, "method": "transact", "params": ["OVN_Southbound", operation]})

    def until(self, condition, seconds):
        """Waits for the condition. Returns the time when it holds, or None after `seconds`."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return None
            self.receive(min(0.2, end - time.monotonic()))
        return time.monotonic()

    def reached(self, cfg):
        return sum(1 for _, it in self.names.values() if it >= cfg)

    def all_reach(self, cfg, number, seconds):
        return self.until(lambda: self.reached(cfg) >= number, seconds)


class Fleet:
    def __init__(self, options):
        self.options, self.dir = options, options.directory
        self.servers, self.others, self.chassis, self.databases = {}, [], [], []
        self.phase = "all"

    def figure(self, name, value):
        value = f"{value:.0f}" if isinstance(value, float) else value
        print(f"figure {self.phase} {name} {value}", flush=True)

    # The databases

    def client_port(self, number):
        return 6640 + number

    def remotes(self):
        return ",".join(f"tcp:127.0.0.1:{self.client_port(number)}" for number in SERVERS)

    def start_server(self, number):
        self.servers[number] = Process(
            f"{self.dir}/sb{number}.log", "ovsdb-server", f"{self.dir}/sb{number}.db",
            f"--remote=ptcp:{self.client_port(number)}:127.0.0.1",
            f"--unixctl={self.dir}/sb{number}.ctl", nice=SERVERS_NICE)

    def status(self, number):
        done = subprocess.run(
            ["ovs-appctl", "-t", f"{self.dir}/sb{number}.ctl", "cluster/status", "OVN_Southbound"],
            capture_output=True, text=True, timeout=20, check=False)
        return done.stdout

    def leader(self):
        alive = [it for it, server in self.servers.items() if server.child.poll() is None]
        return next((it for it in alive if "\nRole: leader" in self.status(it)), None)

    def start_databases(self):
        first = "tcp:127.0.0.1:6651"
        run("ovsdb-tool", "create-cluster", f"{self.dir}/sb1.db",
            f"{SCHEMAS[0]}/ovn-sb.ovsschema", first)
        self.start_server(1)
        within(20, "a leader", lambda: self.leader() == 1)
        for number in SERVERS[1:]:
            run("ovsdb-tool", "join-cluster", f"{self.dir}/sb{number}.db", "OVN_Southbound",
                f"tcp:127.0.0.1:{6650 + number}", first)
            self.start_server(number)
            within(20, "a member",
                   lambda it=number: "Status: cluster member" in self.status(it))
        run("ovsdb-tool", "create", f"{self.dir}/nb.db", f"{SCHEMAS[0]}/ovn-nb.ovsschema")
        self.others.append(Process(
            f"{self.dir}/nb.log", "ovsdb-server", f"{self.dir}/nb.db",
            f"--remote=punix:{self.dir}/nb.sock", f"--unixctl={self.dir}/nb.ctl",
            nice=SERVERS_NICE))
        within(20, "the northbound database", lambda: os.path.exists(f"{self.dir}/nb.sock"))
        os.environ["OVN_NB_DB"] = f"unix:{self.dir}/nb.sock"
        os.environ["OVN_SB_DB"] = self.remotes()
        self.others.append(Process(
            f"{self.dir}/northd.log", "ovn-northd", f"--unixctl={self.dir}/northd.ctl",
            f"--ovnnb-db=unix:{self.dir}/nb.sock", f"--ovnsb-db={self.remotes()}",
            nice=SERVERS_NICE))
        run("ovn-nbctl", "--timeout=30", "init")

    def nbctl(self, commands):
        """Runs many commands of ovn-nbctl in few calls."""
        for begin in range(0, len(commands), 1000):
            words = [word for it in commands[begin:begin + 1000] for word in ("--", *it)]
            run("ovn-nbctl", "--timeout=120", *words[1:], timeout=130)

    def make_network(self):
        switches, ports = self.options.switches, self.options.ports
        commands = [("lr-add", f"r{it}") for it in range(-(-switches // PER_ROUTER))]
        for s in range(switches):
            router, high, low = f"r{s // PER_ROUTER}", s // 256, s % 256
            mac = f"02:01:00:{high:02x}:{low:02x}:01"
            commands += [
                ("ls-add", f"s{s}"),
                ("lrp-add", router, f"{router}-s{s}", mac, f"10.{high}.{low}.1/24"),
                ("lsp-add", f"s{s}", f"s{s}-{router}"),
                ("lsp-set-type", f"s{s}-{router}", "router"),
                ("lsp-set-addresses", f"s{s}-{router}", "router"),
                ("lsp-set-options", f"s{s}-{router}", f"router-port={router}-s{s}")]
            for p in range(2, ports + 2):
                address = f"02:02:00:{high:02x}:{low:02x}:{p:02x} 10.{high}.{low}.{p}"
                commands += [("lsp-add", f"s{s}", f"s{s}-{p}"),
                             ("lsp-set-addresses", f"s{s}-{p}", address)]
        self.nbctl(commands)
        self.nbctl([("pg-add", f"tenant{begin // PER_ROUTER}",
                     *(f"s{s}-{p}" for s in range(begin, min(begin + PER_ROUTER, switches))
                       for p in range(2, ports + 2)))
                    for begin in range(0, switches, PER_ROUTER)])
        self.nbctl([("acl-add", f"tenant{it}", side, "1001", f"{port} == @tenant{it} && ip4",
                     "allow-related")
                    for it in range(-(-switches // PER_ROUTER))
                    for side, port in (("to-lport", "outport"), ("from-lport", "inport"))])
        run("ovn-nbctl", "--timeout=120", "--wait=sb", "sync", timeout=130)
        flows = run("ovn-sbctl", "--timeout=30", "--bare", "--columns=_uuid", "list",
                    "Logical_Flow")
        self.figure("logical_flows", len(flows.split()))
        self.figure("southbound_bytes", os.path.getsize(f"{self.dir}/sb1.db"))

    def logical_ports(self, host):
        """A switch has ports on HOSTS_PER_SWITCH hosts, and each host serves several tenants. A
        host has the same ports in each phase."""
        hosts = self.options.chassis
        step = max(hosts // HOSTS_PER_SWITCH, 1)
        return [f"s{s}-{p}" for s in range(self.options.switches)
                for p in range(2, self.options.ports + 2)
                if (s + (p % HOSTS_PER_SWITCH) * step) % hosts == host]

    # The chassis

    def make_addresses(self, hosts):
        commands = ["link set lo up", "link add under0 type veth peer name under1",
                    "link set under0 up", "link set under1 up"]
        commands += [f"address add {self.address(it)}/16 dev under0" for it in range(hosts)]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True,
                       timeout=60)

    def address(self, host):
        return f"172.16.{host // 250}.{host % 250 + 1}"

    def make_local(self, host, is_all, is_stock):
        """Creates and serves the local database of a host, with its settings and interfaces."""
        folder = f"{self.dir}/c{host}"
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        shutil.copy(f"{self.dir}/empty.db", f"{folder}/conf.db")
        ids = {"system-id": f"c{host}", "hostname": f"c{host}", "ovn-remote": self.remotes(),
               "ovn-encap-type": "geneve", "ovn-encap-ip": self.address(host)}
        if is_all:
            ids["ovn-monitor-all"] = "true"
        to_map = lambda items: ["map", [[key, value] for key, value in items.items()]]
        to_set = lambda rows: ["set", [["named-uuid", row] for row in rows]]
        kind = "dummy" if is_stock else "internal"
        operations, rows = [], []
        logical = [None] + self.logical_ports(host)
        names = ["br-int"] + [f"p{host}-{it}" for it in range(1, len(logical))]
        for number, (name, port) in enumerate(zip(names, logical)):
            ids_of_port = to_map({"iface-id": port} if port else {})
            operations += [
                {"op": "insert", "table": "Interface", "uuid-name": f"i{number}",
                 "row": {"name": name, "type": kind if port else "internal",
                         "external_ids": ids_of_port}},
                {"op": "insert", "table": "Port", "uuid-name": f"p{number}",
                 "row": {"name": name, "interfaces": ["named-uuid", f"i{number}"]}}]
            rows.append(f"p{number}")
        operations += [
            {"op": "insert", "table": "Bridge", "uuid-name": "b",
             "row": {"name": "br-int", "datapath_type": "dummy" if is_stock else "netdev",
                     "fail_mode": "secure", "ports": to_set(rows)}},
            {"op": "insert", "table": "Open_vSwitch",
             "row": {"external_ids": to_map(ids), "bridges": to_set(["b"])}}]
        run("ovsdb-tool", "transact", f"{folder}/conf.db",
            json.dumps(["Open_vSwitch", *operations]))
        return Process(f"{folder}/db.log", "ovsdb-server", f"{folder}/conf.db",
                       f"--remote=punix:{folder}/db.sock", f"--unixctl={folder}/db.ctl")

    def start_chassis(self, hosts, is_stock):
        for host in hosts:
            folder = f"{self.dir}/c{host}"
            local, places = f"unix:{folder}/db.sock", {"OVS_RUNDIR": folder, "OVN_RUNDIR": folder}
            if is_stock:
                self.chassis.append(Process(
                    f"{folder}/controller.log", "ovn-controller", local, environment=places))
            else:
                self.chassis.append(Process(
                    f"{folder}/weft.log", self.options.weft, "run", f"--ovn={local}",
                    "--datapath=none", f"--control={folder}/weft.sock", environment=places))

    def servers_ms(self):
        return {number: server.processor_ms() for number, server in self.servers.items()}

    def chassis_ms(self):
        return [it.processor_ms() for it in self.chassis]

    def cost(self, name, servers, chassis, divisor=1):
        """Prints the processor time of each server and of a chassis since these readings."""
        spent = [(now - servers[it]) / divisor for it, now in self.servers_ms().items()]
        self.figure(f"{name}_servers_ms", " ".join(f"{it:.0f}" for it in spent))
        own = [now - before for now, before in zip(self.chassis_ms(), chassis)]
        self.figure(f"{name}_chassis_median_ms", f"{median(own) / divisor:.1f}")

    def client_counts(self):
        """Established connections of clients at each server."""
        text = run("ss", "-Htn", "state", "established")
        return " ".join(str(sum(1 for line in text.splitlines()
                                if line.split()[2].endswith(f":{self.client_port(number)}")))
                        for number in SERVERS)

    def watcher(self, but=None):
        number = next(it for it in SERVERS if it != but and self.servers[it].child.poll() is None)
        return Watcher(self.client_port(number))

    def nb_cfg(self):
        return int(run("ovn-nbctl", "get", "NB_Global", ".", "nb_cfg"))

    def start(self, hosts, is_all, is_stock):
        self.databases = [self.make_local(it, is_all, is_stock) for it in range(hosts)]
        for host in range(hosts):
            within(20, f"database {host}",
                   lambda it=host: os.path.exists(f"{self.dir}/c{it}/db.sock"))
        if is_stock:
            for host in range(hosts):
                folder = f"{self.dir}/c{host}"
                self.databases.append(Process(
                    f"{folder}/vswitchd.log", "ovs-vswitchd", f"unix:{folder}/db.sock",
                    "--enable-dummy=system", "--disable-system",
                    f"--unixctl={folder}/vswitchd.ctl",
                    environment={"OVS_RUNDIR": folder}))
            time.sleep(5)
        watcher = self.watcher()
        cfg = self.nb_cfg()
        servers, begin = self.servers_ms(), time.monotonic()
        end, started = begin + self.options.seconds, 0
        while watcher.reached(cfg) < hosts:
            reached = watcher.reached(cfg)
            more = min(hosts, reached + self.options.together)
            self.start_chassis(range(started, more), is_stock)
            started = max(started, more)
            watcher.until(lambda it=reached: watcher.reached(cfg) > it, 1)
            if free_kb() < LEAST_FREE_KB:
                fail(f"memory ends with {reached} of {hosts} chassis")
            if time.monotonic() > end:
                fail(f"{reached} of {hosts} chassis have reached nb_cfg {cfg}")
        self.figure("start_ms", (time.monotonic() - begin) * 1000)
        # Measures until all hosts have applied the effects of the ports that were claimed last.
        begin_ports = time.monotonic()
        run("ovn-nbctl", f"--timeout={self.options.seconds}", "--wait=hv", "sync",
            timeout=self.options.seconds + 10)
        self.figure("start_ports_ms", (time.monotonic() - begin_ports) * 1000)
        time.sleep(5)
        self.cost("start", servers, [0] * hosts)
        up = run("ovn-sbctl", "--timeout=30", "--bare", "--columns=_uuid", "find", "Port_Binding",
                 "up=true", "chassis!=[]")
        self.figure("ports_up", len(up.split()))
        for key, name in (("VmRSS", "resident"), ("RssAnon", "anonymous")):
            self.figure(f"{name}_servers_kb", " ".join(
                str(it.memory_kb(key)) for it in self.servers.values()))
            self.figure(f"{name}_chassis_median_kb",
                        median([it.memory_kb(key) for it in self.chassis]))
        self.figure("clients_of_servers", self.client_counts())

    def idle(self):
        servers, chassis = self.servers_ms(), self.chassis_ms()
        time.sleep(10)
        self.cost("idle_second", servers, chassis, 10)

    def change(self):
        """Adds ACLs of a tenant, and waits after each until the last host has confirmed it."""
        changes = self.options.changes
        times, servers, chassis = [], self.servers_ms(), self.chassis_ms()
        for it in range(changes):
            begin = time.monotonic()
            run("ovn-nbctl", "--timeout=60", "--wait=hv", "acl-add", "tenant0", "to-lport",
                str(1100 + it), f"outport == @tenant0 && ip4.src == 192.0.2.{it + 1}", "drop")
            times.append((time.monotonic() - begin) * 1000)
        time.sleep(1)
        self.figure("change_median_and_max_ms", f"{median(times):.0f} {max(times):.0f}")
        self.cost("change", servers, chassis, changes)
        run("ovn-nbctl", "--timeout=60", "acl-del", "tenant0", "to-lport")
        self.nbctl([("acl-add", "tenant0", "to-lport", "1001", "outport == @tenant0 && ip4",
                     "allow-related")])
        run("ovn-nbctl", "--timeout=60", "--wait=hv", "sync")

    def kill_leader(self, hosts, name, how=signal.SIGKILL):
        """Kills the leader, or with SIGSTOP makes it hang like a vanished host. Then makes all hosts
        confirm a number, as soon as the cluster accepts writes; if `name` is "quiet", five seconds
        later."""
        within(20, "a leader", lambda: self.leader() is not None)
        leader = self.leader()
        self.figure(f"{name}_clients_before", self.client_counts())
        watcher = self.watcher(but=leader)
        cfg = self.nb_cfg() + 1
        logs = {it.log: os.path.getsize(it.log) for it in self.chassis}
        servers, chassis = self.servers_ms(), self.chassis_ms()
        begin, begin_wall = time.monotonic(), time.time()
        self.servers[leader].child.send_signal(how)
        if name == "quiet":
            time.sleep(5)
            self.cost(f"{name}_return", servers, chassis)
            begin = time.monotonic()
        sync = subprocess.Popen(["ovn-nbctl", "--timeout=60", "--wait=hv", "sync"])
        # ovn-northd may not write the new number at once, because it waits before it reconnects. So
        # the watcher also writes the number.
        told = None
        while told is None and time.monotonic() < begin + 60:
            watcher.ask_for(cfg)
            told = watcher.until(lambda: watcher.global_cfg >= cfg, 0.1)
        last = told and watcher.all_reach(cfg, hosts, 60)
        if last is None:
            fail(f"after a {name}, {watcher.reached(cfg)} of {hosts} chassis confirm {cfg}")
        self.figure(f"{name}_cluster_writes_ms", (told - begin) * 1000)
        self.figure(f"{name}_last_confirms_ms", (last - begin) * 1000)
        if sync.wait(70) != 0:
            fail(f"ovn-nbctl --wait=hv does not end within 60 s of a {name}")
        self.figure(f"{name}_northd_confirms_ms", (time.monotonic() - begin) * 1000)
        self.reconnections(name, logs, begin_wall)
        time.sleep(2)
        self.servers[leader].processor_ms()
        self.cost(name, servers, chassis)
        if how == signal.SIGSTOP:
            self.servers[leader].end(signal.SIGKILL)
            self.servers[leader].end(signal.SIGCONT)
        self.servers[leader].wait(10)
        self.start_server(leader)
        within(30, "a member", lambda: "Status: cluster member" in self.status(leader))
        time.sleep(3)

    def reconnections(self, name, logs, begin):
        """Prints how many chassis lost their connection, and when the last one had a new one."""
        lost, back = 0, []
        for log, size in logs.items():
            with open(log, encoding="utf-8", errors="replace") as file:
                file.seek(size)
                text = file.read()
            lost += "southbound database at" in text
            for stamp in re.findall(r"(\S+Z).*connected to the southbound database", text):
                whole, fraction = stamp.rstrip("Z").split(".")
                seconds = time.strptime(whole, "%Y-%m-%dT%H:%M:%S")
                back.append(calendar.timegm(seconds) + float("." + fraction))
        if lost:
            self.figure(f"{name}_lost", lost)
            self.figure(f"{name}_last_connects_ms", (max(back, default=begin) - begin) * 1000)

    def stop_chassis(self, hosts):
        begin = time.monotonic()
        for it in self.chassis:
            it.end()
        for it in self.chassis:
            it.wait(begin + 40 - time.monotonic())
        self.figure("stop_ms", (time.monotonic() - begin) * 1000)
        for it in self.databases:
            it.end()
        for it in self.databases:
            it.wait(10)
        self.chassis, self.databases = [], []
        words = [word for host in range(hosts)
                 for word in ("--", "--if-exists", "chassis-del", f"c{host}")]
        run("ovn-sbctl", "--timeout=60", *words[1:])
        self.compact()

    def compact(self):
        """Compacts the databases, so that all phases begin with databases without a history."""
        for number in SERVERS:
            run("ovs-appctl", "-t", f"{self.dir}/sb{number}.ctl", "ovsdb-server/compact",
                "OVN_Southbound")

    def measure(self, phase, hosts, is_all=False, is_stock=False, hang=False):
        self.phase = phase
        say(f"{phase}: {hosts} chassis; load {os.getloadavg()[0]:.1f}")
        self.figure("chassis", hosts)
        self.figure("load_before", f"{os.getloadavg()[0]:.2f}")
        self.start(hosts, is_all, is_stock)
        self.idle()
        self.change()
        for number in range(self.options.kills):
            self.kill_leader(hosts, f"kill{number + 1}")
        self.kill_leader(hosts, "quiet")
        if hang:
            self.kill_leader(hosts, "hang", signal.SIGSTOP)
        self.figure("load_after", f"{os.getloadavg()[0]:.2f}")
        self.stop_chassis(hosts)

    def end(self):
        for it in self.chassis + self.databases + self.others + list(self.servers.values()):
            it.end(signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("weft")
    for name in ("chassis", "switches", "ports", "changes", "seconds", "peers", "kills",
                 "together"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--all", action="store_true", help="measure ovn-monitor-all, too")
    parser.add_argument("--hang", action="store_true")
    options = parser.parse_args()
    if "OVN_FLEET_INSIDE" not in os.environ:
        os.environ["OVN_FLEET_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child",
                              "--mount-proc", sys.executable, *sys.argv])
    os.environ.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", LC_ALL="C",
                      OVS_RUNDIR=options.directory, OVN_RUNDIR=options.directory)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    fleet = Fleet(options)
    try:
        fleet.make_addresses(max(options.chassis, options.peers))
        run("ovsdb-tool", "create", f"{options.directory}/empty.db",
            f"{SCHEMAS[1]}/vswitch.ovsschema")
        fleet.start_databases()
        say(f"making {options.switches} switches of {options.ports} ports")
        fleet.make_network()
        fleet.compact()
        fleet.measure("weft", options.chassis, hang=options.hang)
        if options.peers:
            for name, is_stock in (("weft-few", False), ("stock-few", True)):
                fleet.measure(name, options.peers, is_stock=is_stock)
                fleet.measure(f"{name}-all", options.peers, is_all=True, is_stock=is_stock)
        # This phase is the last one, because memory may not suffice for it.
        if options.all:
            fleet.measure("weft-all", options.chassis, is_all=True)
    except subprocess.TimeoutExpired as late:
        fail(f"no end of {' '.join(map(str, late.cmd))[:200]}")
    finally:
        fleet.end()


if __name__ == "__main__":
    main()
