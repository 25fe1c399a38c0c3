#!/bin/bash
# Measures one host of a large OVN deployment, with the stock chassis and with weft: the cost of a
# start, of a new port and of a new ACL. `cargo xtask ovn-scale` calls this script. It runs in
# separate namespaces, which end with the script together with all processes and devices in them.
# Prints a line for each figure: "figure CHASSIS NAME VALUE".
#
#     ovn-scale.sh DIRECTORY WEFT SWITCHES PORTS ROUTERS REPEATS
#
# DIRECTORY must be empty; it keeps the logs. WEFT is the program. There are SWITCHES switches with
# PORTS ports each, evenly distributed over ROUTERS routers. New ports and ACLs are measured REPEATS
# times.
set -euo pipefail
dir=$1 weft=$2 switches=$3 ports=$4 routers=$5 repeats=$6
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
if [ -z "${OVN_SCALE_INSIDE:-}" ]; then
    OVN_SCALE_INSIDE=1 exec unshare --mount --net --uts --pid --fork --kill-child --mount-proc \
        "$0" "$@"
fi

fail() {
    echo "FAILED $*"
    exit 1
}
say() {
    echo "$(date -u +%H:%M:%S) $*"
}
# within SECONDS COMMAND...: repeats the command until it succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}
# start NAME COMMAND...: starts a background process, and keeps its log. Sets `started` to its
# process number.
start() {
    local name=$1
    shift
    "$@" >>"$dir/$name.log" 2>&1 </dev/null &
    started=$!
}
now_ms() {
    echo $((${EPOCHREALTIME/./} / 1000))
}
figure() {
    echo "figure $chassis $1 $2"
}
# The median and the 99th percentile of the numbers on standard input.
quantiles() {
    sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], v[int((NR * 99 + 99) / 100)] }'
}

# Makes files private, so that the machine's own Open vSwitch and OVN are not affected.
prepare_files() {
    mount --make-rprivate /
    mount -t sysfs sysfs /sys
    mount -t bpf bpf /sys/fs/bpf
    mount -t tmpfs tmpfs /run
    mkdir -p /run/openvswitch /run/ovn /run/lock /var/log/ovn /var/log/openvswitch
    mount -t tmpfs tmpfs /var/log/ovn
    mount -t tmpfs tmpfs /var/log/openvswitch
    hostname chassis1
}

start_databases() {
    ip link set lo up
    ip link add under0 type veth peer name under1
    ip link set under1 up
    ip address add 192.0.2.1/24 dev under0
    ip link set under0 up
    mkdir "$dir/db"
    cd "$dir/db"
    ovsdb-tool create nb.db /usr/share/ovn/ovn-nb.ovsschema
    ovsdb-tool create sb.db /usr/share/ovn/ovn-sb.ovsschema
    start nb ovsdb-server nb.db --remote=punix:/run/ovn/ovnnb_db.sock \
        --unixctl=/run/ovn/ovnnb_db.ctl
    start sb ovsdb-server sb.db --remote=punix:/run/ovn/ovnsb_db.sock --unixctl=/run/ovn/ovnsb.ctl
    within 10 test -S /run/ovn/ovnsb_db.sock
    within 10 test -S /run/ovn/ovnnb_db.sock
    start northd ovn-northd --unixctl=/run/ovn/ovn-northd.ctl
}

# batches NUMBER [ARGUMENT...]: calls ovn-nbctl repeatedly, each time with NUMBER words of standard
# input.
batches() {
    xargs -x -s 1900000 -n "$1" ovn-nbctl "${@:2}"
}

make_network() {
    local s p
    for ((s = 0; s < routers; s++)); do
        echo "-- lr-add r$s"
    done | batches 25000
    # Port P of switch S has the address 10.H.L.P, where H and L are the high and the low byte of S.
    for ((s = 0; s < switches; s++)); do
        mac=02:01:00:$(printf '%02x:%02x' $((s / 256)) $((s % 256))):01
        router=r$((s % routers))
        echo "-- ls-add s$s" \
            "-- lrp-add $router $router-s$s $mac 10.$((s / 256)).$((s % 256)).1/24" \
            "-- lsp-add s$s s$s-$router -- lsp-set-type s$s-$router router" \
            "-- lsp-set-addresses s$s-$router router" \
            "-- lsp-set-options s$s-$router router-port=$router-s$s"
    done | batches 25000
    for ((s = 0; s < switches; s++)); do
        for ((p = 2; p < ports + 2; p++)); do
            mac=02:02:00:$(printf '%02x:%02x:%02x' $((s / 256)) $((s % 256)) "$p")
            ip=10.$((s / 256)).$((s % 256)).$p
            echo "-- lsp-add s$s s$s-$p -- lsp-set-addresses s$s-$p '$mac $ip'"
        done
    done | batches 16000
    # A port group with ACLs that contains up to 5,000 ports.
    for ((s = 0; s < switches && s * ports < 5000; s++)); do
        for ((p = 2; p < ports + 2; p++)); do
            echo "s$s-$p"
        done
    done | batches 20000 pg-add guests
    ovn-nbctl acl-add guests to-lport 1001 'outport == @guests && ip4' allow-related
    ovn-nbctl acl-add guests from-lport 1001 'inport == @guests && ip4' allow-related
    ovn-nbctl --timeout=300 --wait=sb sync
}

# make_guest NAME SWITCH PORT: creates a namespace with a device, whose other end can be attached to
# the port.
make_guest() {
    local name=$1 s=$2 p=$3
    ip netns add "$name"
    ip link add "$name" type veth peer name eth0 netns "$name"
    ip link set "$name" up
    ip -n "$name" link set eth0 address \
        "02:02:00:$(printf '%02x:%02x:%02x' $((s / 256)) $((s % 256)) "$p")"
    ip -n "$name" address add "10.$((s / 256)).$((s % 256)).$p/24" dev eth0
    ip -n "$name" link set eth0 mtu 1400 up
    ip -n "$name" route add default via "10.$((s / 256)).$((s % 256)).1"
    ip netns exec "$name" ethtool -K eth0 tx off >/dev/null
}

start_local_database() {
    mkdir "$dir/$chassis"
    ovsdb-tool create "$dir/$chassis/vswitch.db" /usr/share/openvswitch/vswitch.ovsschema
    rm -f /run/openvswitch/*
    start local ovsdb-server "$dir/$chassis/vswitch.db" --unixctl=/run/openvswitch/local.ctl \
        --remote=punix:/run/openvswitch/db.sock
    local_database=$started
    within 10 test -S /run/openvswitch/db.sock
    ovs-vsctl --no-wait init
    ovs-vsctl --no-wait set open . external_ids:system-id=chassis1 \
        external_ids:hostname=chassis1 external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock \
        external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=192.0.2.1 \
        external_ids:ovn-bridge-datapath-type=netdev
    [ "${chassis%-all}" = "$chassis" ] || ovs-vsctl --no-wait set open . external_ids:ovn-monitor-all=true
    ovs-vsctl --no-wait add-br br-int -- set bridge br-int datapath_type=netdev fail_mode=secure \
        -- add-port br-int guest0 -- set interface guest0 external_ids:iface-id=s0-2
}

start_chassis() {
    if [ "${chassis%-all}" = stock ]; then
        start "$chassis-vswitchd" ovs-vswitchd --pidfile --disable-system
        processes=$started
        start "$chassis-controller" ovn-controller --pidfile --log-file=/var/log/ovn/ovn-controller.log
        processes="$processes $started"
    else
        start "$chassis" "$weft" run --ovn --datapath=kernel
        processes=$started
    fi
}

# The nb_cfg that the chassis has confirmed, as a number.
reached_cfg() {
    ovsdb-client transact unix:/run/ovn/ovnsb_db.sock '["OVN_Southbound", {"op": "select",
        "table": "Chassis_Private", "where": [["name", "==", "chassis1"]],
        "columns": ["nb_cfg"]}]' | sed -n 's/.*"nb_cfg":\([0-9]*\).*/\1/p'
}
has_reached() {
    [ "$(reached_cfg)" = "$1" ]
}
processor_ms() {
    local id
    for id in $processes; do
        sed 's/.*) //' "/proc/$id/stat" | awk '{ print ($12 + $13) * 10 }'
    done | awk '{ sum += $1 } END { print sum }'
}
resident_kb() {
    local id
    for id in $processes; do
        sed -n "s/^$1:[[:space:]]*\([0-9]*\).*/\1/p" "/proc/$id/status"
    done | awk '{ sum += $1 } END { print sum }'
}
# The memory of the eBPF maps, which the kernel allocates.
maps_kb() {
    local id
    for id in $processes; do
        cat "/proc/$id/fdinfo/"* 2>/dev/null |
            awk '/^memlock:/ { bytes = $2 } /^map_id:/ { maps[$2] = bytes }
                END { for (map in maps) sum += maps[map]; print int(sum / 1024) }'
    done | awk '{ sum += $1 } END { print sum }'
}

pings() {
    ip netns exec guest0 ping -q -c 1 -W 0.1 "$1" >/dev/null
}
# Measures a new port: from the command that adds it to the first ping reply of its guest.
bind_ports() {
    local n s p begin
    for ((n = 1; n <= repeats; n++)); do
        s=$(((n % 10) * routers)) p=$((3 + n % (ports - 1)))
        make_guest guest1 "$s" "$p"
        begin=$(now_ms)
        ovs-vsctl --timeout=30 add-port br-int guest1 -- \
            set interface guest1 "external_ids:iface-id=s$s-$p"
        within 30 pings "10.$((s / 256)).$((s % 256)).$p" || fail "$chassis: no answer of s$s-$p"
        echo $(($(now_ms) - begin))
        ovs-vsctl --timeout=30 del-port guest1
        ip netns del guest1
        ip link del guest1 2>/dev/null || true
    done
}
# Measures the time from ovn-northd's transaction to the confirmation of the chassis, as observed by
# ovn-northd.
change_acls() {
    local n
    for ((n = 1; n <= repeats; n++)); do
        ovn-nbctl --timeout=120 --wait=hv acl-add guests to-lport $((1100 + n)) \
            "outport == @guests && ip4.src == 192.0.2.$n" drop
        ovn-nbctl --bare --columns=sb_cfg_timestamp,hv_cfg_timestamp list NB_Global |
            xargs | awk '{ print $2 - $1 }'
    done
    ovn-nbctl --timeout=120 acl-del guests to-lport
    ovn-nbctl acl-add guests to-lport 1001 'outport == @guests && ip4' allow-related
    ovn-nbctl --timeout=120 --wait=sb sync
}

measure() {
    local cfg begin values id
    say "$chassis"
    start_local_database
    ovn-nbctl --timeout=120 --wait=sb sync
    cfg=$(ovn-nbctl get NB_Global . nb_cfg)
    begin=$(now_ms)
    start_chassis
    within 300 has_reached "$cfg" || fail "$chassis does not reach nb_cfg $cfg"
    figure start_ms $(($(now_ms) - begin))
    figure start_processor_ms "$(processor_ms)"
    within 60 pings 10.0.0.1 || fail "$chassis: the router does not answer"
    figure first_ping_ms $(($(now_ms) - begin))
    sleep 5
    figure settled_processor_ms "$(processor_ms)"
    figure resident_kb "$(resident_kb VmRSS)"
    figure peak_kb "$(resident_kb VmHWM)"
    figure maps_kb "$(maps_kb)"
    values=$(bind_ports)
    case $values in *FAILED*) fail "$values" ;; esac
    figure bind_median_and_p99_ms "$(quantiles <<<"$values")"
    begin=$(processor_ms)
    figure acl_median_and_p99_ms "$(change_acls | quantiles)"
    figure acl_processor_ms $((($(processor_ms) - begin) / repeats))
    for id in $processes; do
        kill "$id"
        wait "$id" || true
    done
    kill "$local_database"
    wait "$local_database" || true
    ovn-sbctl --if-exists chassis-del chassis1
    ip link del br-int 2>/dev/null || true
}

prepare_files
start_databases
say "making $switches switches of $ports ports behind $routers routers"
make_network
chassis=all
figure logical_flows "$(ovn-sbctl --bare --columns=_uuid list Logical_Flow | grep -c .)"
figure southbound_bytes "$(stat -c %s "$dir/db/sb.db")"
make_guest guest0 0 2
for chassis in stock stock-all weft-all weft; do
    measure
done
