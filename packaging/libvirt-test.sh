#!/bin/bash
# Tests virtual machines of libvirt on weft. One uses a TAP device that the network file names.
# Libvirt adds the interface of the other one with ovs-vsctl, and the machine then moves to another
# host while it runs. `cargo xtask libvirt-test` calls this script. It runs in separate namespaces,
# which end with the script together with all processes and devices in them. Prints a line for each
# check: "ok CHECK" or "FAILED CHECK".
#
#     libvirt-test.sh DIRECTORY WEFT KERNEL [ARGUMENT...]
#
# DIRECTORY must be empty; it keeps the logs. KERNEL is the directory of a kernel for the machines,
# created by scripts/fetch-guest-kernel.sh. The arguments are those of `weft run`.
set -euo pipefail
dir=$1 weft=$2 kernel=$3
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
if [ -z "${LIBVIRT_TEST_INSIDE:-}" ]; then
    LIBVIRT_TEST_INSIDE=1 exec unshare --mount --net --uts --pid --fork --kill-child --mount-proc \
        "$0" "$@"
fi
shift 3
arguments=("$@")

# The addresses of the machine, and of the namespace on the other host that exchanges packets with
# it.
mac=02:00:00:00:01:0a
address=10.0.0.10
peer_mac=02:00:00:00:01:0b
peer_address=10.0.0.11
# libvirt requires UUIDs as names of logical ports.
port=6a3f7d2e-0f0c-4a8e-9f53-1d2b6c7e8f01
failures=0

check() {
    local name=$1
    shift
    if "$@" >>"$dir/checks.log" 2>&1; then
        echo "ok $name"
    else
        echo "FAILED $name"
        failures=$((failures + 1))
    fi
}
# within SECONDS COMMAND...: repeats the command until it succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}
not() {
    ! "$@"
}
# start NAME HOST COMMAND...: starts a background process. Keeps its log and its process number in
# files.
start() {
    local name=$1 host=$2
    shift 2
    nsenter -t "$(cat "$dir/$host.pid")" --mount --net --uts "$@" \
        >>"$dir/$name.log" 2>&1 </dev/null &
    echo "$!" >"$dir/$name.id"
}
# stop NAME: ends a process of `start`.
stop() {
    local id
    id=$(cat "$dir/$1.id")
    kill "$id" && within 20 not kill -0 "$id" 2>/dev/null
}
# on HOST COMMAND...: runs a command on a host. Hosts have separate networks, files in /run and
# libvirt daemons.
on() {
    local host=$1
    shift
    nsenter -t "$(cat "$dir/$host.pid")" --mount --net --uts "$@"
}
from_peer() {
    on h2 ip netns exec peer "$@"
}
virsh_on() {
    local host=$1
    shift
    on "$host" timeout 60 virsh -q -c qemu:///system "$@"
}

make_host() {
    local host=$1 number=$2 id
    mkdir -p "$dir/$host"
    unshare --mount --net --uts sleep 3600 &
    id=$!
    within 5 not same_namespace "$id"
    echo "$id" >"$dir/$host.pid"
    on "$host" hostname "$host"
    on "$host" mount --make-rprivate /
    on "$host" mount -t sysfs sysfs /sys
    for path in /run /var/lib/libvirt /var/cache/libvirt /var/log/libvirt /etc/libvirt; do
        on "$host" mkdir -p "$path"
        on "$host" mount -t tmpfs tmpfs "$path"
    done
    on "$host" mkdir -p /run/openvswitch /run/ovn /run/libvirt /etc/libvirt/qemu
    # libvirt needs this user and these groups, which another Debian package creates.
    for file in passwd group; do
        grep -v '^libvirt-qemu:\|^kvm:' /etc/$file >"$dir/$host/$file"
    done
    echo libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin >>"$dir/$host/passwd"
    printf '%s\n' libvirt-qemu:x:64055: kvm:x:64056: >>"$dir/$host/group"
    for file in passwd group; do
        on "$host" mount --bind "$dir/$host/$file" /etc/$file
    done
    printf '%s\n' "host_uuid = \"00000000-0000-4000-8000-00000000000$number\"" \
        'unix_sock_group = "root"' 'listen_tls = 0' 'listen_tcp = 1' 'auth_unix_rw = "none"' 'auth_tcp = "none"' \
        >"$dir/$host/libvirtd.conf"
    # Without control groups and without another user, because the test is about networks.
    printf '%s\n' 'user = "root"' 'group = "root"' 'security_driver = "none"' \
        'cgroup_controllers = []' 'namespaces = []' 'stdio_handler = "file"' 'remember_owner = 0' \
        >"$dir/$host/qemu.conf"
    on "$host" cp "$dir/$host/qemu.conf" /etc/libvirt/qemu.conf
    on "$host" ip link set lo up
}
same_namespace() {
    [ "$(readlink "/proc/$1/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ]
}

make_hosts() {
    make_host h1 1
    make_host h2 2
    ip link add under1 type veth peer name under2
    ip link set under1 netns "$(cat "$dir/h1.pid")"
    ip link set under2 netns "$(cat "$dir/h2.pid")"
    for number in 1 2; do
        on h$number ip link set under$number name eth0
        on h$number ip link set eth0 up
        on h$number ip address add 192.0.2.$number/24 dev eth0
    done
    on h2 ip netns add peer
    on h2 ip -n peer link set lo up
    for number in 1 2; do
        # With --listen, libvirtd accepts migrations from the other host.
        start libvirtd$number h$number libvirtd --listen --config "$dir/h$number/libvirtd.conf"
    done
    within 20 virsh_on h1 version && within 20 virsh_on h2 version
}

# Creates a root file system: busybox, the driver of the network card, and a web server.
make_guest() {
    local root=$dir/guest module
    mkdir -p "$root"/{bin,dev,lib,proc,sys,tmp,www/cgi-bin}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for module in $(cat "$kernel/modules"); do
        cp "$kernel/$module.ko" "$root/lib/"
        echo "insmod /lib/$module.ko" >>"$root/lib/load"
    done
    cat >"$root/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
. /lib/load
ip address add $address/24 dev eth0
ip link set lo up
ip link set eth0 up
echo machine >/www/name
head -c 2000000 /dev/urandom >/www/stream
md5sum </www/stream >/www/sum
httpd -p 80 -h /www
echo up >/dev/ttyS0
while true; do sleep 3600; done
INIT
    cat >"$root/www/cgi-bin/pings" <<CGI
#!/bin/sh
echo
ping -c 2 -W 2 $peer_address
CGI
    cat >"$root/www/cgi-bin/queues" <<'CGI'
#!/bin/sh
echo
ls -d /sys/class/net/eth0/queues/tx-* | wc -l
cat /sys/class/net/eth0/mtu
CGI
    chmod 755 "$root/init" "$root"/www/cgi-bin/*
    (cd "$root" && find . | busybox cpio -o -H newc) >"$dir/root.cpio"
}

# domain NAME: prints the description of a machine, whose <interface> is read from standard input.
domain() {
    cat <<XML
<domain type='qemu'>
  <name>$1</name>
  <uuid>11111111-2222-4333-8444-555555555555</uuid>
  <memory unit='MiB'>160</memory>
  <vcpu>2</vcpu>
  <os>
    <type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type>
    <kernel>$kernel/vmlinux</kernel>
    <initrd>$dir/root.cpio</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 cryptomgr.notests=1</cmdline>
  </os>
  <cpu mode='custom' match='exact'><model>qemu64</model></cpu>
  <on_reboot>destroy</on_reboot>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'><source path='$dir/$1.console'/></serial>
$(cat)
  </devices>
</domain>
XML
}

pings() {
    from_peer ping -c 2 -W 2 $address
}
fetch() {
    from_peer timeout 20 busybox wget -q -O - "http://$address/$1"
}
carries_stream() {
    [ "$(fetch stream | md5sum)" = "$(fetch sum)" ]
}
machine_pings() {
    fetch cgi-bin/pings | grep -F '2 packets received'
}
# has_queues NUMBER MTU
has_queues() {
    [ "$(fetch cgi-bin/queues)" = "$1"$'\n'"$2" ]
}

# Part one: <interface type='ethernet'> on the TAP device of a network file.
ethernet() {
    local host
    cat >"$dir/network.toml" <<TOML
tunnel = "geneve"

[[host]]
name = "h1"
uplink = "eth0"
underlay = ["192.0.2.1"]

[[host]]
name = "h2"
uplink = "eth0"
underlay = ["192.0.2.2"]

[[logical_switch]]
name = "blue"
vni = 100

  [[logical_switch.port]]
  name = "machine"
  host = "h1"
  mac = "$mac"
  addresses = ["$address/24"]
  device = { vm = "tap7", queues = 2 }

  [[logical_switch.port]]
  name = "peer"
  host = "h2"
  mac = "$peer_mac"
  addresses = ["$peer_address/24"]
  device = { tap = "eth0", netns = "peer" }
TOML
    for host in h1 h2; do
        start "weft-$host" $host "$weft" run "${arguments[@]}" --host $host "$dir/network.toml"
    done
    domain machine >"$dir/ethernet.xml" <<XML
    <interface type='ethernet'>
      <mac address='$mac'/>
      <target dev='tap7' managed='no'/>
      <model type='virtio'/>
      <mtu size='1442'/>
      <driver queues='2'/>
    </interface>
XML
    within 20 on h1 ip link show tap7 >/dev/null 2>&1
    check "ethernet: libvirt starts a machine" virsh_on h1 create "$dir/ethernet.xml"
    check "ethernet: it answers pings through a tunnel" within 90 pings
    check "ethernet: it pings" within 30 machine_pings
    check "ethernet: it has two queues, and the MTU" has_queues 2 1442
    check "ethernet: the kernel has two queues open" queues_open 2
    check "ethernet: it serves a stream" carries_stream
    check "ethernet: weft restarts" restart_weft
    check "ethernet: the machine answers" within 10 pings
    check "ethernet: the machine ends" virsh_on h1 destroy machine
    check "ethernet: its port is down" within 10 port_is_down
    check "ethernet: it starts again" virsh_on h1 create "$dir/ethernet.xml"
    check "ethernet: it answers again" within 90 pings
    check "ethernet: it ends again" virsh_on h1 destroy machine
    stop weft-h1
    stop weft-h2
    check "ethernet: nothing is left of the TAP" not on h1 ip link show tap7
}
queues_open() {
    on h1 ip -d link show tap7 | grep -F "multi_queue numqueues $1"
}
restart_weft() {
    stop weft-h1
    on h1 ip link show tap7
    start weft-h1 h1 "$weft" run "${arguments[@]}" --host h1 "$dir/network.toml"
}
port_is_down() {
    on h1 "$weft" show | grep -F "link is down"
}

# Part two: <virtualport type='openvswitch'>, for which libvirt calls ovs-vsctl.
vsctl_on() {
    local host=$1
    shift
    on "$host" ovs-vsctl --timeout=20 "$@"
}
start_ovn() {
    local number
    mkdir "$dir/db"
    (
        cd "$dir/db"
        ovsdb-tool create nb.db /usr/share/ovn/ovn-nb.ovsschema
        ovsdb-tool create sb.db /usr/share/ovn/ovn-sb.ovsschema
        for number in 1 2; do
            ovsdb-tool create vswitch$number.db /usr/share/openvswitch/vswitch.ovsschema
        done
    )
    start nb h1 ovsdb-server "$dir/db/nb.db" --remote=punix:/run/ovn/ovnnb_db.sock \
        --unixctl=/run/ovn/ovnnb_db.ctl
    start sb h1 ovsdb-server "$dir/db/sb.db" --remote=punix:/run/ovn/ovnsb_db.sock \
        --remote=ptcp:6642:192.0.2.1 --unixctl=/run/ovn/ovnsb_db.ctl
    for number in 1 2; do
        start ovsdb$number h$number ovsdb-server "$dir/db/vswitch$number.db" \
            --remote=punix:/run/openvswitch/db.sock --unixctl=/run/openvswitch/ovsdb-server.ctl
        within 10 on h$number test -S /run/openvswitch/db.sock
        vsctl_on h$number --no-wait init
        vsctl_on h$number --no-wait set open . external_ids:system-id=h$number \
            external_ids:ovn-remote=tcp:192.0.2.1:6642 external_ids:ovn-encap-type=geneve \
            external_ids:ovn-encap-ip=192.0.2.$number
        start ovn-weft$number h$number "$weft" run --ovn "${arguments[@]}"
    done
    start northd h1 ovn-northd --unixctl=/run/ovn/ovn-northd.ctl
    within 20 has_chassis h1 && within 20 has_chassis h2
    nbctl ls-add blue -- lsp-add blue $port -- lsp-set-addresses $port "$mac $address" \
        -- lsp-set-options $port requested-chassis=h1 \
        -- lsp-add blue peer -- lsp-set-addresses peer "$peer_mac $peer_address"
    # Part one has removed the TAP device of the namespace.
    on h2 ip link add vif-peer type veth peer name eth0 netns peer
    on h2 ip -n peer link set eth0 address $peer_mac mtu 1442 up
    on h2 ip -n peer address add $peer_address/24 dev eth0
    on h2 ip link set vif-peer mtu 1442 up
    vsctl_on h2 add-port br-int vif-peer -- set interface vif-peer external_ids:iface-id=peer
}
nbctl() {
    on h1 ovn-nbctl --timeout=20 "$@"
}
sbctl() {
    on h1 ovn-sbctl --timeout=20 "$@"
}
has_chassis() {
    [ -n "$(sbctl --bare --columns=_uuid find Chassis name="$1")" ]
}
openvswitch() {
    start_ovn
    domain machine >"$dir/openvswitch.xml" <<XML
    <interface type='bridge'>
      <mac address='$mac'/>
      <source bridge='br-int'/>
      <virtualport type='openvswitch'><parameters interfaceid='$port'/></virtualport>
      <target dev='vif-machine'/>
      <model type='virtio'/>
      <mtu size='1442'/>
      <driver queues='2'/>
    </interface>
XML
    check "openvswitch: libvirt starts a machine" virsh_on h1 create "$dir/openvswitch.xml"
    check "openvswitch: libvirt has added the interface" has_interface h1
    check "openvswitch: the logical port is up" within 10 is_up true
    check "openvswitch: it answers pings through a tunnel" within 90 pings
    check "openvswitch: it pings" within 30 machine_pings
    check "openvswitch: it has two queues, and the MTU" has_queues 2 1442
    check "openvswitch: it serves a stream" carries_stream
    check "openvswitch: it moves to another host while it runs" migrate
    check "openvswitch: the port is that of the new host" has_interface h2
    check "openvswitch: the old host has lost it" not has_interface h1
    check "openvswitch: it answers on the new host" within 10 pings
    check "openvswitch: it serves a stream from there" carries_stream
    check "openvswitch: the machine ends" virsh_on h2 destroy machine
    check "openvswitch: libvirt has removed the interface" within 10 not has_interface h2
    check "openvswitch: the logical port is down" within 10 is_up false
    stop ovn-weft1
    stop ovn-weft2
}
has_interface() {
    vsctl_on "$1" get interface vif-machine external_ids | grep -F "iface-id=\"$port\""
}
is_up() {
    [ "$(nbctl get logical_switch_port $port up)" = "$1" ]
}
# Migrates the machine, while the other host sends it 1,000 echo requests per second. The pause is
# printed, and the part of it in which QEMU stops the machine to copy the rest of its memory.
migrate() {
    local moved=1 downtime
    start flow h2 ip netns exec peer python3 "$dir/flow.py" $address
    within 20 grep -s -q steady "$dir/flow.log" || return 1
    # Sets requested-chassis to the new host as soon as the machine runs there, like a platform
    # does.
    start events h2 stdbuf -oL virsh -q -c qemu:///system event --all --loop --timeout 120
    switch_host >"$dir/switcher.log" 2>&1 &
    virsh_on h1 migrate-setmaxdowntime machine 30
    virsh_on h1 migrate --live machine qemu+tcp://192.0.2.2/system tcp://192.0.2.2 &&
        within 20 grep -q switched "$dir/switcher.log" && moved=0
    sleep 3
    stop flow
    [ $moved = 0 ] || return 1
    downtime=$(virsh_on h2 domjobinfo machine --completed | tr -s ' ' | sed -n 's,^Total downtime: ,,p')
    sed -n "s/^longest.*/info migration: &; QEMU's downtime was ${downtime:-not reported}/p" \
        "$dir/flow.log" >"$dir/migration.txt"
    cat "$dir/migration.txt"
    grep -q longest "$dir/migration.txt"
}
switch_host() {
    local end=$((SECONDS + 60))
    until grep -s -q Resumed "$dir/events.log"; do
        [ $SECONDS -lt $end ] || return
        sleep 0.005
    done
    nbctl lsp-set-options $port requested-chassis=h2
    echo switched
}
cat >"$dir/flow.py" <<'PYTHON'
import os, signal, socket, struct, sys, time

def request(number):
    data = struct.pack("!HHQ", own, number & 0xffff, number)
    words = struct.unpack(f"!{len(data) // 2}H", data)
    total = 0x0800 + sum(words)
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return struct.pack("!BBH", 8, 0, total ^ 0xffff) + data

own = os.getpid() & 0xffff
flow = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
flow.connect((sys.argv[1], 0))
flow.setblocking(False)
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
sent = received = 0
longest = 0.0
last = start = time.monotonic()
while not ended:
    try:
        flow.send(request(sent))
    except OSError:
        pass
    sent += 1
    while time.monotonic() < start + sent * 0.001:
        try:
            reply = flow.recv(64)
            if reply[20] == 0 and struct.unpack_from("!H", reply, 24)[0] == own:
                now = time.monotonic()
                received += 1
                # Pauses of the first packets do not count, because they find no cached flow.
                longest = max(longest, now - last if received > 500 else 0)
                last = now
                if received == 1000:
                    print("steady", flush=True)
        except OSError:
            time.sleep(0.0002)
print(f"longest pause {longest * 1000:.1f} ms, {sent - received} of {sent} packets lost", flush=True)
PYTHON

finish() {
    local code=$?
    set +e
    [ "$code" -eq 0 ] || echo "FAILED the test ended with exit code $code"
    [ ! -s "$dir/migration.txt" ] || cat "$dir/migration.txt"
    for host in h1 h2; do
        on $host cp -r /var/log/libvirt "$dir/$host/log" 2>/dev/null
    done
    [ "$code" -ne 0 ] || [ "$failures" -eq 0 ] || code=1
    exit "$code"
}

mount --make-rprivate /
trap finish EXIT
{
    make_guest
    make_hosts
} >"$dir/setup.log" 2>&1
ethernet
openvswitch
