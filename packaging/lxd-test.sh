#!/bin/bash
# Tests LXD with its OVN network type, on a chassis that is stock or weft, with two containers.
# `cargo xtask lxd-test` calls this script. It runs in separate namespaces, which end with the
# script together with all processes and devices in them. Prints a line for each check: "ok CHECK"
# or "FAILED CHECK".
#
#     lxd-test.sh stock DIRECTORY
#     lxd-test.sh weft DIRECTORY WEFT [ARGUMENT...]
#
# DIRECTORY must be empty; it keeps the logs. WEFT is the program, followed by arguments of `weft
# run --ovn`.
set -euo pipefail
chassis=$1 dir=$2
shift 2
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
if [ -z "${LXD_TEST_INSIDE:-}" ]; then
    LXD_TEST_INSIDE=1 exec unshare --mount --net --uts --pid --fork --kill-child --mount-proc \
        "$0" "$chassis" "$dir" "$@"
fi
export LXD_DIR=$dir/lxd

fail() {
    echo "FAILED $*"
    exit 1
}
# check NAME COMMAND...: prints whether the command succeeds.
failures=0
check() {
    local name=$1 before=$EPOCHREALTIME
    shift
    if "$@" >>"$dir/checks.log" 2>&1; then
        echo "ok $name"
    else
        echo "FAILED $name"
        failures=$((failures + 1))
    fi
    echo "== $name: $(((${EPOCHREALTIME/./} - ${before/./}) / 1000)) ms" >>"$dir/checks.log"
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
# start NAME COMMAND...: starts a background process, and keeps its log.
start() {
    local name=$1
    shift
    "$@" >"$dir/$name.log" 2>&1 </dev/null &
    echo "$!" >"$dir/$name.id"
}
within_container() {
    local name=$1
    shift
    timeout -k 1 12 lxc exec -T "$name" -- timeout -k 1 10 "$@"
}

# Makes files private, so that the machine's own Open vSwitch, OVN and LXD are not affected.
prepare_files() {
    mount --make-rprivate /
    mkdir -p "$dir/cgroup"
    mount --rbind /sys/fs/cgroup "$dir/cgroup"
    mount -t sysfs sysfs /sys
    mount --rbind "$dir/cgroup" /sys/fs/cgroup
    mount -t tmpfs tmpfs /run
    mkdir -p /run/openvswitch /run/ovn /run/lock /var/log/ovn /var/log/openvswitch
    mount -t tmpfs tmpfs /var/log/ovn
    mount -t tmpfs tmpfs /var/log/openvswitch
    hostname chassis1
}

# Creates the uplink of LXD's networks: the veth `up0`, with a router and servers at its other end.
prepare_network() {
    ip link set lo up
    ip link add under0 type veth peer name under1
    ip link set under1 up
    ip address add 192.0.2.1/24 dev under0
    ip link set under0 up
    ip netns add outside
    ip link add up0 type veth peer name ext0 netns outside
    ip link set up0 up
    ip -n outside link set lo up
    ip -n outside link set ext0 up
    ip -n outside address add 198.51.100.1/24 dev ext0
    ip netns exec outside ethtool -K ext0 tx off tso off gso off >/dev/null
    start dns ip netns exec outside python3 "$dir/dns.py"
    mkdir -p "$dir/outside"
    echo outside >"$dir/outside/name"
    start outside ip netns exec outside busybox httpd -f -p 80 -h "$dir/outside"
}

# A DNS server that knows only www.example.net.
cat >"$dir/dns.py" <<'PYTHON'
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("198.51.100.1", 53))
while True:
    asked, client = server.recvfrom(512)
    end = asked.index(0, 12) + 5
    known = asked[12:end] == b"\3www\7example\3net\0\0\1\0\1"
    head = asked[:2] + (b"\x81\x80" if known else b"\x81\x83") + b"\0\1"
    head += (b"\0\1" if known else b"\0\0") + b"\0\0\0\0"
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + bytes([198, 51, 100, 1]) if known else b""
    server.sendto(head + asked[12:end] + answer, client)
PYTHON

prepare_databases() {
    mkdir "$dir/db"
    cd "$dir/db"
    ovsdb-tool create vswitch.db /usr/share/openvswitch/vswitch.ovsschema
    ovsdb-tool create nb.db /usr/share/ovn/ovn-nb.ovsschema
    ovsdb-tool create sb.db /usr/share/ovn/ovn-sb.ovsschema
    start ovsdb ovsdb-server vswitch.db --remote=punix:/run/openvswitch/db.sock \
        --unixctl=/run/openvswitch/ovsdb-server.ctl
    start nb ovsdb-server nb.db --remote=punix:/run/ovn/ovnnb_db.sock \
        --remote=ptcp:6641:127.0.0.1 --unixctl=/run/ovn/ovnnb_db.ctl
    start sb ovsdb-server sb.db --remote=punix:/run/ovn/ovnsb_db.sock --unixctl=/run/ovn/ovnsb.ctl
    within 10 test -S /run/ovn/ovnsb_db.sock
    within 10 test -S /run/ovn/ovnnb_db.sock
    within 10 test -S /run/openvswitch/db.sock
    start northd ovn-northd --unixctl=/run/ovn/ovn-northd.ctl
    ovs-vsctl --no-wait init
    ovs-vsctl --no-wait set open . external_ids:system-id=chassis1 \
        external_ids:hostname=chassis1 external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock \
        external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=192.0.2.1
}

start_chassis() {
    if [ "$chassis" = weft ]; then
        start weft "$1" run --ovn "${@:2}"
    else
        ovs-vsctl --no-wait set open . external_ids:ovn-bridge-datapath-type=netdev
        start vswitchd ovs-vswitchd --pidfile --disable-system
        start controller ovn-controller --pidfile --log-file=/var/log/ovn/ovn-controller.log
    fi
    within 30 has_chassis || fail "the chassis does not register"
}
has_chassis() {
    [ -n "$(ovn-sbctl --bare --columns=_uuid find Chassis name=chassis1)" ]
}

# Creates an image from busybox.
make_image() {
    local root=$dir/image/rootfs applet
    mkdir -p "$root"/{bin,dev,etc,proc,root,run,sbin,sys,tmp,usr/bin,usr/sbin,var,www}
    cp /usr/bin/busybox "$root/bin/busybox"
    for applet in $(busybox --list); do
        [ "$applet" = busybox ] || ln -s /bin/busybox "$root/bin/$applet"
    done
    ln -s /bin/busybox "$root/sbin/init"
    printf '::sysinit:/bin/hostname -F /etc/hostname\n::respawn:/bin/sleep 3600\n' \
        >"$root/etc/inittab"
    cat >"$root/etc/udhcpc.script" <<'SCRIPT'
#!/bin/sh
[ "$1" = bound ] || [ "$1" = renew ] || exit 0
ip address flush dev "$interface"
ip address add "$ip/$mask" dev "$interface"
ip link set "$interface" mtu "${mtu:-1442}"
ip route add default via "$router"
: >/etc/resolv.conf
[ -z "$domain" ] || echo "search $domain" >>/etc/resolv.conf
for server in $dns; do
    echo "nameserver $server" >>/etc/resolv.conf
done
SCRIPT
    chmod 755 "$root/etc/udhcpc.script"
    echo root:x:0:0::/root:/bin/sh >"$root/etc/passwd"
    echo root:x:0: >"$root/etc/group"
    printf 'architecture: x86_64\ncreation_date: 1\nproperties: {description: busybox}\n' \
        >"$dir/image/metadata.yaml"
    tar -C "$dir/image" -cf "$dir/image.tar" metadata.yaml rootfs
    lxc image import -q "$dir/image.tar" --alias busybox
}

start_lxd() {
    mkdir -p "$LXD_DIR"
    start lxd lxd --group root --logfile "$dir/lxd-daemon.log"
    timeout 60 lxd waitready || fail "LXD does not start"
    lxc config set network.ovn.northbound_connection tcp:127.0.0.1:6641
    lxc storage create pool dir
    make_image
}

make_networks() {
    lxc network create UPLINK --type=physical parent=up0 ipv4.gateway=198.51.100.1/24 \
        ipv4.ovn.ranges=198.51.100.100-198.51.100.120 ipv4.routes=198.51.100.64/27 \
        dns.nameservers=198.51.100.1
    lxc network create n1 --type=ovn network=UPLINK ipv4.nat=true ipv4.address=10.5.5.1/24 \
        ipv6.address=none
}

# LXD creates the uplink's bridge with the kernel datapath of Open vSwitch, which may be missing.
use_netdev() {
    local bridge
    for bridge in $(ovs-vsctl list-br); do
        ovs-vsctl set bridge "$bridge" datapath_type=netdev
    done
}

make_container() {
    lxc init -q busybox "$1" --storage pool -c security.privileged=true
    lxc config device add "$1" eth0 nic network=n1 security.acls.default.egress.action=allow
    timeout 60 lxc start "$1"
    complete_checksums "$1"
}

# Open vSwitch does not complete partial checksums, so containers must send complete ones.
complete_checksums() {
    [ "$chassis" = weft ] || nsenter -n -t "$(lxc info "$1" | awk '$1 == "PID:" { print $2 }')" \
        ethtool -K eth0 tx off tso off gso off
}

# Tests the functions that LXD's documentation describes, from inside a container.
has_address() {
    within_container "$1" ip link set eth0 up
    within_container "$1" udhcpc -i eth0 -n -q -t 10 -T 1 -s /etc/udhcpc.script
    within_container "$1" ip -4 -o address show dev eth0 | grep -F 10.5.5.
}
address_of() {
    within_container "$1" ip -4 -o address show dev eth0 | sed 's/.* inet \([0-9.]*\).*/\1/'
}
resolves() {
    within_container "$1" nslookup -type=a "$2" | tail -n +3 | grep -F "$3"
}
pings() {
    within_container "$1" ping -c 2 -W 2 "$2"
}
serves() {
    within_container "$1" sh -c "echo $1 >/www/name"
    within_container "$1" sh -c 'httpd -p 80 -h /www; httpd -p 8080 -h /www'
}
# fetches CONTAINER ADDRESS[:PORT] EXPECTED
fetches() {
    [ "$(within_container "$1" timeout 3 wget -q -O - "http://$2/name")" = "$3" ]
}
fetches_outside() {
    [ "$(timeout 3 ip netns exec outside busybox wget -q -O - "http://$1/name")" = "$2" ]
}
# Checks that three megabytes arrive unchanged, so the checksums and lengths of segments are
# correct.
carries_stream() {
    within_container c2 sh -c 'head -c 3000000 /dev/urandom >/www/stream'
    local sum
    sum=$(within_container c2 md5sum /www/stream | cut -c1-32)
    within_container c1 sh -c "wget -q -O - http://$2/stream | md5sum" | grep -F "$sum"
}
downloads() {
    head -c 3000000 /dev/urandom >"$dir/outside/stream"
    local sum
    sum=$(md5sum "$dir/outside/stream" | cut -c1-32)
    within_container c1 sh -c "wget -q -O - http://198.51.100.1/stream | md5sum" | grep -F "$sum"
}
reached_from_nat() {
    # The server outside must see the address of the router.
    local external
    external=$(lxc network get n1 volatile.network.ipv4.address)
    start see ip netns exec outside timeout 10 tcpdump -n -i ext0 -c 1 "icmp and src $external"
    within 5 grep -q listening "$dir/see.log"
    pings c1 198.51.100.1 && within 5 grep -q "IP $external > " "$dir/see.log"
}
balances() {
    local seen
    seen=$(for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
        timeout 3 ip netns exec outside busybox wget -q -O - "http://$1/name"
    done | sort -u | tr '\n' ' ')
    echo "answers of: $seen"
    [ "$seen" = "c1 c2 " ]
}

control_sockets() {
    ovs-appctl version
    ovs-appctl -t ovs-vswitchd dpctl/dump-conntrack | grep -E '^(tcp|udp|icmp),orig='
    ovs-appctl dpctl/dump-flows | grep -F 'actions:'
    ovs-appctl dpctl/flush-conntrack
    ovn-appctl -t ovn-controller version
    [ "$(ovn-appctl -t ovn-controller connection-status)" = connected ]
    ovn-appctl -t ovn-controller ct-zone-list | grep -E '^[^ ]+ [0-9]+$'
}

# A command that neither the stock chassis nor weft supports.
refused_command() {
    local said
    ! said=$(ovs-appctl no-such/command 2>&1) && grep -F no-such/command <<<"$said"
}
leaves() {
    ovn-appctl -t ovn-controller exit
    within 10 not has_chassis
    [ "$chassis" = weft ] || ovs-appctl exit --cleanup
    within 10 not test -e /run/openvswitch/ovs-vswitchd.pid
}
removes_all() {
    timeout 30 lxc delete -f c1 c2 && timeout 20 lxc network delete n1 &&
        timeout 20 lxc network delete UPLINK
}

walk() {
    local a1 a2
    check "the first container gets an address" has_address c1
    check "the second container gets an address" has_address c2
    a1=$(address_of c1) a2=$(address_of c2)
    echo "addresses: $a1 $a2" >>"$dir/checks.log"
    check "a container resolves the name of the other" within 5 resolves c1 c2.lxd "$a2"
    check "a container resolves a name outside" within 5 resolves c1 www.example.net 198.51.100.1
    check "c1 reaches c2" pings c1 "$a2"
    check "c2 reaches c1" pings c2 "$a1"
    check "a container reaches the router" pings c1 10.5.5.1
    check "a container reaches the uplink" pings c2 198.51.100.1
    check "its address is translated" reached_from_nat
    serves c1 && serves c2
    check "HTTP between containers" fetches c1 "$a2" c2
    check "a stream between containers" carries_stream c1 "$a2"
    check "HTTP to a server outside" fetches c1 198.51.100.1 outside
    check "a stream from outside" downloads

    check "LXD makes a network forward" make_forward "$a1"
    check "the forward leads to its container" fetches_outside 198.51.100.70 c1
    check "the forward of a port" fetches_outside 198.51.100.70:8080 c2
    check "the forward from inside" fetches c2 198.51.100.70 c1
    check "OVN gets a load balancer" make_balancer "$a1" "$a2"
    check "connections reach both containers" within 8 balances 198.51.100.71

    check "LXD makes a network ACL" make_acl
    check "the ACL lets HTTP pass" within 5 fetches c2 "$a1" c1
    check "the ACL rejects another port" within 5 rejected c2 "$a1:8080"
    check "the ACL lets ping pass" pings c2 "$a1"
    check "the ACL holds for the forward" fetches_outside 198.51.100.70 c1
    check "the ACL follows a change" changed_acl "$a1"
    check "the chassis logs what the ACL logs" within 5 logged "$a1"
    check "the ACL is gone" removed_acl "$a1"
    check "tools' control sockets answer" control_sockets
    check "a command that is missing is named" refused_command
    check "a container that restarts gets its address again" restarted c2 "$a2"
    check "c1 reaches it" pings c1 "$a2"
    check "LXD removes containers and networks" removes_all
    check "the chassis stops when tools say so" leaves
}
make_forward() {
    lxc network forward create n1 198.51.100.70 target_address="$1"
    lxc network forward port add n1 198.51.100.70 tcp 8080 "$(address_of c2)" 8080
    ovn-nbctl --wait=hv --timeout=10 sync
}
# LXD 5.0 has no command for load balancers, so this adds one to LXD's router with OVN's command.
make_balancer() {
    local router
    router=$(ovn-nbctl --bare --columns=name list Logical_Router)
    ovn-nbctl lb-add balancer 198.51.100.71:80 "$1:80,$2:80" tcp
    ovn-nbctl lr-lb-add "$router" balancer
    ovn-nbctl --wait=hv --timeout=10 sync
}
rejected() {
    local before=$EPOCHREALTIME
    not fetches "$1" "$2" c1 && [ $((${EPOCHREALTIME/./} - ${before/./})) -lt 1500000 ]
}
make_acl() {
    lxc network acl create web
    lxc network acl rule add web ingress action=allow protocol=tcp destination_port=80
    lxc network acl rule add web ingress action=allow protocol=icmp4 state=logged
    lxc config device set c1 eth0 security.acls=web
    ovn-nbctl --wait=hv --timeout=10 sync
}
changed_acl() {
    lxc network acl rule add web ingress action=allow protocol=tcp destination_port=8080
    within 5 fetches c2 "$1:8080" c1
}
logged() {
    pings c2 "$1"
    # LXD 5.0.2 (lxc network acl show-log) does not find the entries in the log of ovn-controller
    # 23.03.
    grep -sqF lxd_acl1-ingress-1 "$dir/weft.log" /var/log/ovn/ovn-controller.log
}
removed_acl() {
    lxc config device unset c1 eth0 security.acls
    lxc network acl delete web
    within 5 fetches c2 "$1:8080" c1
}
restarted() {
    timeout 60 lxc restart -f "$1" && complete_checksums "$1" && has_address "$1" &&
        [ "$(address_of "$1")" = "$2" ]
}

finish() {
    local code=$?
    set +e
    [ "$code" -eq 0 ] || echo "FAILED the walk ended with exit code $code"
    timeout 30 lxc delete -f c1 c2 >>"$dir/finish.log" 2>&1
    cp -r /var/log/ovn "$dir/log-ovn"
    timeout 20 lxd shutdown >>"$dir/finish.log" 2>&1
    # LXC does not remove its empty control groups.
    find /sys/fs/cgroup -mindepth 2 -depth -type d \
        \( -path '*/lxc.*.c[12]*' -o -path '*/lxc.pivot*' \) -exec rmdir {} \; 2>/dev/null
    echo "$chassis: $SECONDS s, $failures failed"
    [ "$code" -ne 0 ] || [ "$failures" -eq 0 ] || code=1
    exit "$code"
}

prepare_files
trap finish EXIT
{
    prepare_network
    prepare_databases
    start_chassis "$@"
    start_lxd
    make_networks
    [ "$chassis" = weft ] || use_netdev
    make_container c1
    make_container c2
} >"$dir/setup.log" 2>&1
walk
