#!/bin/bash
# Installs, runs, kills, upgrades and removes the packages in the directories `old` and `new`, which
# are next to this file. It needs a booted Debian for itself, and `cargo xtask deb-test` boots one.
# Ends with "passed" and exit code 0, or with the step that failed.
#
#     test.sh PACKETS
#
# PACKETS is the minimum number of packets of each flow while the daemon is killed, hangs or is
# replaced.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
packets=${1:-2000}
unit=weft.service
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive
export SYSTEMD_COLORS=0 SYSTEMD_URLIFY=0
cd /root

step() {
    printf '\n== %s\n' "$*"
}
fail() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}
tell_why() {
    local code=$?
    [ "$code" -ne 0 ] || return 0
    set +e
    systemctl status --no-pager --lines=0 $unit
    journalctl --boot --no-pager --lines=60 --unit=$unit --unit=far.service
    journalctl --boot --no-pager --dmesg --lines=15
    printf '\nfailed after %s s\n' "$SECONDS"
    exit "$code"
}
trap tell_why EXIT

# wait_for SECONDS COMMAND...
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "waited in vain for: $*"
        sleep 0.2
    done
}
# refused TEXT COMMAND...: checks that the command fails, and that its output contains the text.
refused() {
    local text=$1 said
    shift
    ! said=$("$@" 2>&1) || fail "should be refused: $*"
    grep -qF -- "$text" <<<"$said" || fail "$* says: $said"
}
not_there() {
    ! ip link show "$1"
}
main_pid() {
    systemctl show --property=MainPID --value $unit
}
is_new_pid() {
    local now
    now=$(main_pid)
    [ "$now" != 0 ] && [ "$now" != "$1" ] && systemctl is-active --quiet $unit
}
run_apt() {
    apt-get -qq --yes "$@" >apt.log 2>&1 || { cat apt.log; fail "apt-get $*"; }
}
install_packages() {
    run_apt install --allow-downgrades "$@"
}
# messages [OPTION...]: prints the messages that the unit has logged since the boot.
messages() {
    journalctl --boot --unit=$unit --no-pager --output=cat "$@"
}

# The guests are web and app on this host, and db on the other. Each flow is GUEST:ADDRESS. The
# flows include both directions through the tunnel.
flows='web:10.0.0.2 web:10.0.0.3 app:10.0.0.1 db:10.0.0.1'
talk() {
    local flow
    for flow in $flows; do
        wait_for 20 ip netns exec "${flow%:*}" ping -q -c 2 -i 0.1 -W 1 "${flow#*:}"
    done
}
start_traffic() {
    local flow guest address
    # A guest verifies a neighbour by ARP every 15 to 45 s, and gives it up after 3 s without a
    # reply. In an emulated machine, the daemon takes longer to start, and no megaflow forwards the
    # ARP request. So the neighbours are permanent.
    for flow in $flows; do
        guest=${flow%:*} address=${flow#*:}
        ip -n "$guest" neigh replace "$address" lladdr "02:00:00:00:00:0${address##*.}" \
            dev "${guest}0" nud permanent
    done
    talk
    counters >counters-before
    pings=
    for flow in $flows; do
        ip netns exec "${flow%:*}" ping -D -n -i 0.01 "${flow#*:}" \
            >"ping-$flow" 2>&1 &
        pings="$pings $!"
    done
    sleep 2
}
# Prints counters of packets that the kernel may have dropped, a line for each. The counters of
# unresolved neighbours and backlogs are those of all namespaces.
counters() {
    local netns
    awk '{ print "processor", NR, "backlog: dropped 0x" $2 }' /proc/net/softnet_stat
    awk 'NR > 1 { print "processor", NR - 1, "ARP: failed 0x" $7 ", packets dropped 0x" $12 }' \
        /proc/net/stat/arp_cache
    for netns in host far web app db; do
        if [ $netns = host ]; then
            cat /proc/net/snmp /proc/net/dev /proc/net/raw
        else
            ip netns exec $netns cat /proc/net/snmp /proc/net/dev /proc/net/raw
        fi | awk -v netns=$netns '
            /^[A-Za-z]+:/ && !named[$1]++ { for (i = 2; i <= NF; i++) name[$1, i] = $i; next }
            /^(Ip|Icmp|IcmpMsg|Udp):/ {
                for (i = 2; i <= NF; i++) print netns, $1, name[$1, i], $i
            }
            NF == 17 && $1 ~ /:$/ && !/^[A-Z]/ {
                print netns, $1, "received", $3, "dropped", $5, "sent", $11, "dropped", $13
            }
            $NF == "drops" { raw = 1; next }
            raw { drops += $NF }
            END { print netns, "raw sockets: dropped", drops + 0 }'
        ip -n $netns neigh 2>/dev/null | sed "s/^/$netns neighbour /" || true
    done
}
# Prints the number of the last packet of a flow that has a reply, the number of packets with a
# reply, and the longest time between two replies in milliseconds.
counts() {
    awk -F icmp_seq= '/bytes from/ {
        split($2, part, " ")
        number = part[1] + 0
        if (!(number in seen)) { seen[number]; received++ }
        if (number > last) last = number
        time = substr($1, 2) + 0
        if (before && time - before > longest) longest = time - before
        before = time
    }
    END { printf "%d %d %.0f\n", last, received, longest * 1000 }' "ping-$1"
}
has_enough() {
    local last received longest_ms
    read -r last received longest_ms <<<"$(counts "$1")"
    [ "$last" -ge "$packets" ]
}
# Packets after the last one that has a reply may still be in flight, so they are not counted.
end_traffic() {
    local flow last received longest_ms lost=0 total=0
    for flow in $flows; do wait_for 900 has_enough "$flow"; done
    counters >counters-after
    # shellcheck disable=SC2086
    kill -INT $pings
    # shellcheck disable=SC2086
    wait $pings || true
    for flow in $flows; do
        read -r last received longest_ms <<<"$(counts "$flow")"
        [ "$last" -eq "$received" ] ||
            echo "$flow: lost $((last - received)) of $last, no reply for $longest_ms ms"
        lost=$((lost + last - received))
        total=$((total + last))
    done
    echo "lost $lost of $total round trips of established flows"
    last_lost=$lost
}
# Prints when packets of a flow had no reply. Compare these times with the journal.
print_lost() {
    awk -F icmp_seq= '/bytes from/ {
        split($2, part, " ")
        time[part[1] + 0] = substr($1, 2, index($1, "]") - 2)
        if (part[1] + 0 > last) last = part[1] + 0
    }
    END {
        for (first = 1; first <= last; first = end + 1) {
            for (end = first; end <= last && !(end in time); end++);
            if (end > first) print first, end - 1, (first > 1 ? time[first - 1] : 0)
        }
    }' "ping-$1" | while read -r first last before; do
        echo "$1: no reply to $first..$last, after $(date -u -d "@$before" +%T.%3N)"
    done
}
expect_no_loss() {
    local flow
    end_traffic
    [ "$last_lost" -eq 0 ] || {
        for flow in $flows; do print_lost "$flow"; done
        weft show --host h1 || true
        diff counters-before counters-after | grep '^[<>]' || true
        fail "$last_lost packets were lost"
    }
}
# Prints how long no daemon was ready, by phase: the old daemon ends, systemd starts the new one,
# its datapath starts, the rest of it starts.
print_gap() {
    journalctl --boot --unit=$unit --output=short-monotonic --no-pager | awk '
        { time = $0; sub(/^\[ */, "", time); sub(/\].*/, "", time) }
        /Stopping weft|Main process exited/ { stopping = time }
        /Starting weft/ { starting = time }
        /datapath started/ { forwards = time }
        /Started weft/ { ready = time }
        function print_ms(what, from, to) { printf "%s: %.0f ms\n", what, (to - from) * 1000 }
        END {
            print_ms("without a daemon that is ready", stopping, ready)
            print_ms("  until systemd starts the new daemon", stopping, starting)
            print_ms("  until its datapath has started", starting, forwards)
            print_ms("  until it is ready", forwards, ready)
        }'
}

# Starts many established UDP flows between web and db, each with a separate megaflow on both hosts.
# An emulated machine can process this number and rate. The program `flows` counts losses between
# two lines of its input.
sources=200
many=$((2 * sources * 50))
start_many() {
    local direction
    for direction in from-port to-port; do
        cat <<END

[[acl]]
switch = "blue"
direction = "$direction"
priority = 1000
match = "udp.src == {$(seq -s ', ' 20000 $((20000 + sources - 1)))} && udp.dst == {$(
            seq -s ', ' 30000 30049)}"
action = "allow"
END
    done >>/etc/weft/network.toml
    systemctl reload $unit
    weft reload /etc/weft/network.toml --host h2 >/dev/null
    sysctl -qw net.core.rmem_max=4000000 net.core.rmem_default=4000000
    mkfifo many-web-in many-db-in
    ip netns exec web "$here/flows" 10.0.0.1 10.0.0.2 $sources 500 <many-web-in >many-web &
    ip netns exec db "$here/flows" 10.0.0.2 10.0.0.1 $sources 500 <many-db-in >many-db &
    exec 8>many-web-in 9>many-db-in
    wait_for 900 has_megaflows h1
    wait_for 900 has_megaflows h2
    windows=0
}
# The daemon counts the megaflows of the eBPF programs and those of the user datapath, so each flow
# counts twice.
has_megaflows() {
    local count
    count=$(weft show --host "$1" --json | tr -d ' \n' |
        sed 's/.*"megaflows":{"megaflows":\([0-9]*\).*/\1/')
    [ "$count" -ge $((2 * many)) ]
}
turn_many() {
    echo >&8
    echo >&9
}
has_counted() {
    [ "$(cat many-web many-db | wc -l)" -eq $((2 * windows)) ]
}
expect_no_loss_of_many() {
    local sent received pause_ms
    # In this time, every flow sends at least one packet.
    sleep 25
    turn_many
    windows=$((windows + 1))
    wait_for 120 has_counted
    read -r sent received pause_ms <<<"$(tail -qn 1 many-web many-db | awk '
        { sent += $1; received += $2; if ($3 > pause) pause = $3 }
        END { print sent, received, pause + 0 }')"
    echo "lost $((sent - received)) of $sent datagrams of $many UDP flows, none for $pause_ms ms"
    [ "$sent" -eq "$received" ] || fail "datagrams were lost"
}
expect_no_fault() {
    local invocation
    invocation=$(systemctl show --property=InvocationID --value $unit)
    ! journalctl --boot --no-pager "_SYSTEMD_INVOCATION_ID=$invocation" | grep 'self-check:' ||
        fail "the self-check has found a fault"
}
uses() {
    grep -q "\"datapath\": *\"$1\"" <(weft show --host h1 --json)
}

step "prepare two hosts: this machine, and a network namespace"
ip link add up0 type veth peer name up1
ip netns add far
ip link set up1 netns far
ip address add 192.0.2.1/24 dev up0
ip link set up0 up
ip -n far address add 192.0.2.2/24 dev up1
ip -n far link set up1 up
ip -n far link set lo up
for guest in web db; do ip netns add $guest; done
qdiscs=$(tc qdisc show dev up0)
rules=$(nft list ruleset)

step "install"
install_packages "$here"/old/weft_*.deb
dpkg-query --show weft
! systemctl is-enabled --quiet $unit || fail "the daemon must not start before its file is edited"
! systemctl is-active --quiet $unit || fail "the daemon runs"
getent group weft
grep -q 'edge switch' <(zcat /usr/share/man/man1/weft.1.gz) || fail "no man page"
cat >complete.sh <<'END'
. /usr/share/bash-completion/completions/weft
COMP_WORDS=(weft sto) COMP_CWORD=1
_weft weft sto weft
echo "${COMPREPLY[@]}"
END
[ "$(bash complete.sh)" = stop ] || fail "bash completes: $(bash complete.sh)"
systemd-analyze verify --man=no /lib/systemd/system/weft{,-ovn}.service
systemd-analyze security --no-pager weft.service | tail -n 1

step "start with the file as installed: its hosts are others"
printf 'Our file must be edited first.\n'
hostname h7
! systemctl start $unit || fail "a host that the file does not have has started"
systemctl show --property=Result,ExecMainStatus $unit
[ "$(systemctl show --property=ExecMainStatus --value $unit)" = 2 ] || fail "exit code 2"
messages | grep -F 'has no host "h7"'
hostname h1

step "edit one file, enable, start"
sed -i -e '0,/uplink = "eth0"/s//uplink = "up0"/' -e 's/uplink = "eth0"/uplink = "up1"/' \
    /etc/weft/network.toml
cat >>/etc/weft/network.toml <<'END'

  [[logical_switch.port]]
  name = "app"
  host = "h1"
  mac = "02:00:00:00:00:03"
  addresses = ["10.0.0.3/24"]
  device = { tap = "app0", netns = "app" }
END
systemctl enable --now $unit
systemctl is-active $unit
# Checks the promises of docs/log-messages.md about the journal, with the refused start above and
# this one.
journalctl --boot --unit=$unit --output=json --no-pager >journal.json
message_of() {
    grep -F "$1" journal.json | tail -n 1
}
field() {
    sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"
}
for expected in 'has no host:3' 'id=started:6'; do
    line=$(message_of "${expected%:*}")
    [ "$(field PRIORITY <<<"$line")" = "${expected#*:}" ] || fail "the priority in: $line"
    [ "$(field SYSLOG_IDENTIFIER <<<"$line")" = weft ] || fail "the identifier in: $line"
    [ "$(field _SYSTEMD_UNIT <<<"$line")" = $unit ] || fail "the unit in: $line"
    echo "journal: PRIORITY=$(field PRIORITY <<<"$line") SYSLOG_IDENTIFIER=weft for ${expected%:*}"
done
[ "$(field _PID <<<"$line")" = "$(main_pid)" ] || fail "the process in: $line"
! grep -F '"MESSAGE":"<' journal.json || fail "the journal has not taken the priorities"
journalctl --boot --unit=$unit --priority=warning --output=cat --no-pager >warnings
grep -q 'has no host' warnings || fail "an error is missing in the journal"
! grep -q id=started warnings || fail "the start is no warning"
# The daemon's mount namespace is older than this network namespace.
ip netns add app
uses kernel
weft show --host h1 | grep '^privileges'
systemd-run --quiet --unit=far ip netns exec far \
    weft run --idle 3600 --host h2 /etc/weft/network.toml
talk
echo "guests talk, on this host and through the tunnel"

step "Prometheus shows the guests"
echo 'WEFT_OPTIONS=--metrics 127.0.0.1:9478' >/etc/default/weft
systemctl restart $unit
cat >prometheus.yml <<'END'
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [/usr/share/doc/weft/examples/weft.rules.yml]
scrape_configs:
  - job_name: weft
    static_configs: [{ targets: ["127.0.0.1:9478"] }]
END
promtool check config prometheus.yml
systemd-run --quiet --unit=watcher prometheus --config.file="$PWD/prometheus.yml" \
    --storage.tsdb.path="$PWD/prometheus" --web.listen-address=127.0.0.1:9090
# query EXPRESSION: prints the labels and the value of each sample in Prometheus.
query() {
    promtool query instant http://127.0.0.1:9090 "$1"
}
has_samples() {
    query "$1" | grep .
}
wait_for 120 has_samples 'up{job="weft"} == 1'
for port in web app; do
    wait_for 60 has_samples "weft_port_up{port=\"$port\"} == 1"
done
talk
for port in web app; do
    wait_for 60 has_samples "weft_port_receive_packets_total{port=\"$port\"} > 0"
    query "weft_port_receive_packets_total{port=\"$port\"}"
done
! has_samples 'weft_port_up == 0' || fail "a port is down"
systemctl stop watcher.service
rm /etc/default/weft
systemctl restart $unit

step "group weft may view, only root may change"
useradd --system --groups weft viewer
useradd --system stranger
runuser -u viewer -- weft show --host h1 >/dev/null
runuser -u viewer -- weft flows --host h1 >/dev/null
for change in 'stop --host h1' 'reload /etc/weft/network.toml --host h1' \
    'capture web --host h1 -w -'; do
    # shellcheck disable=SC2086
    refused 'only view' runuser -u viewer -- weft $change
done
refused 'cannot reach' runuser -u stranger -- weft show --host h1

step "reload"
sed -i 's/^vni = 5001/vni = 5002/' /etc/weft/network.toml
systemctl reload $unit
weft reload /etc/weft/network.toml --host h2 >/dev/null
talk
cp /etc/weft/network.toml good.toml
echo 'nonsense = 1' >/etc/weft/network.toml
systemctl reload $unit || true
status_names_error() {
    systemctl show --property=StatusText --value $unit | grep -F "no [[host]]"
}
wait_for 10 status_names_error
systemctl show --property=StatusText $unit
talk
cp good.toml /etc/weft/network.toml
systemctl reload $unit
status_is_empty() {
    [ -z "$(systemctl show --property=StatusText --value $unit)" ]
}
wait_for 10 status_is_empty

step "kill -9 under traffic"
before=$(main_pid)
start_traffic
systemctl kill --signal=KILL $unit
wait_for 90 is_new_pid "$before"
expect_no_loss
print_gap

step "hang under traffic: the watchdog ends it"
before=$(main_pid)
limit=$(systemctl show --property=WatchdogUSec --value $unit)
mkdir -p /run/systemd/system/$unit.d
printf '[Service]\nWatchdogSec=5s\n' >/run/systemd/system/$unit.d/short.conf
systemctl daemon-reload
systemctl restart $unit
wait_for 90 is_new_pid "$before"
before=$(main_pid)
sleep 12
[ "$(main_pid)" = "$before" ] || fail "the watchdog ended a daemon that was alive"
start_traffic
kill -STOP "$before"
wait_for 90 is_new_pid "$before"
messages | grep 'Watchdog timeout (limit' | tail -n 1
expect_no_loss
rm /run/systemd/system/$unit.d/short.conf
systemctl daemon-reload
echo "the unit's own limit is $limit"

step "weft stop is not undone"
start_traffic
weft stop --host h1
sleep 3
! systemctl is-active --quiet $unit || fail "systemd has started the daemon again"
expect_no_loss
systemctl start $unit

upgrade() {
    local before
    before=$(main_pid)
    start_traffic
    install_packages "$1"/weft_*.deb
    wait_for 90 is_new_pid "$before"
    dpkg-query --show weft
}
step "upgrade under traffic"
upgrade "$here/new"
messages | grep -o 'adopted the megaflows.*' | tail -n 1
expect_no_loss
print_gap

step "downgrade under traffic"
upgrade "$here/old"
expect_no_loss
print_gap

step "the same with many UDP flows"
cp /etc/weft/network.toml good.toml
echo 'WEFT_OPTIONS=--idle 3600' >/etc/default/weft
systemctl restart $unit
start_many
turn_many
before=$(main_pid)
systemctl kill --signal=KILL $unit
wait_for 90 is_new_pid "$before"
expect_no_loss_of_many
print_gap
for version in new old; do
    before=$(main_pid)
    turn_many
    install_packages "$here/$version"/weft_*.deb
    wait_for 90 is_new_pid "$before"
    messages | grep -o 'adopted the megaflows.*' | tail -n 1
    expect_no_loss_of_many
    print_gap
    [ $version = old ] || expect_no_fault
done
exec 8>&- 9>&-
cp good.toml /etc/weft/network.toml
systemctl reload $unit
weft reload /etc/weft/network.toml --host h2 >/dev/null

step "upgrade under traffic, with the user datapath"
echo 'WEFT_OPTIONS=--datapath user' >/etc/default/weft
systemctl restart $unit
uses user
upgrade "$here/new"
end_traffic
print_gap
talk
rm /etc/default/weft
systemctl restart $unit
uses kernel

step "capabilities: each one is needed"
mkdir -p /run/systemd/system/$unit.d
# Drop-ins are read in the order of their names. This one must be the last.
try_without() {
    cat >/run/systemd/system/$unit.d/zz-drop.conf
    systemctl daemon-reload
    systemctl reset-failed $unit
    ! systemctl restart $unit 2>/dev/null || fail "it starts without $1"
    messages --lines=15 >messages.log
    grep -om 1 "lacks.*$1 ([a-z A-Z]*)" messages.log || fail "the error does not name $1"
}
for one in CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_ADMIN; do
    printf '[Service]\nCapabilityBoundingSet=~%s\n' $one | try_without $one
done
rm /run/systemd/system/$unit.d/zz-drop.conf
systemctl daemon-reload
systemctl restart $unit
talk

step "without guests in network namespaces: CAP_BPF and CAP_PERFMON in place of CAP_SYS_ADMIN"
example=/usr/share/doc/weft/examples/without-namespaces.conf
cp /etc/weft/network.toml good.toml
for guest in web app; do
    ip link add $guest-host type veth peer name eth0 netns $guest
    ip link set $guest-host up
done
sed -i -E 's/\{ tap = "(web|app)0", netns = "[a-z]*" \}/{ interface = "\1-host" }/' \
    /etc/weft/network.toml
cp $example /run/systemd/system/$unit.d/
echo 'WEFT_OPTIONS=--datapath kernel' >/etc/default/weft
for one in CAP_BPF CAP_PERFMON; do
    { cat $example; echo "CapabilityBoundingSet=~$one"; } | try_without $one
done
rm /run/systemd/system/$unit.d/zz-drop.conf
systemctl daemon-reload
systemctl reset-failed $unit
systemctl restart $unit
weft show --host h1 | grep '^privileges'
number=1
for guest in web app; do
    ip -n $guest link set eth0 address 02:00:00:00:00:0$number
    ip -n $guest address add 10.0.0.$number/24 dev eth0
    ip -n $guest link set eth0 up mtu 1450
    number=3
done
for guest in web app; do
    ! ip -n $guest link show "${guest}0" >/dev/null 2>&1 || fail "the old device is left"
done
talk
systemctl stop $unit
rm -r /run/systemd/system/$unit.d /etc/default/weft
systemctl daemon-reload
for guest in web app; do ip link delete $guest-host; done
cp good.toml /etc/weft/network.toml
weft stop --purge --host h1
systemctl start $unit
talk

step "OVN: weft-ovn.service takes the place of weft.service"
weft stop --purge --host h1
ip netns exec far weft stop --purge --host h2
ovn() {
    local tool=$1
    shift
    "ovn-$tool" --timeout=60 "$@"
}
systemctl start ovn-central.service
wait_for 60 ovn nbctl show
wait_for 60 ovn sbctl show
# The unit starts the local database, and waits for its settings.
systemctl start --no-block weft-ovn.service
wait_for 60 ovs-vsctl --timeout=5 --no-wait show
systemctl is-active ovn-northd.service ovsdb-server.service
ovs-vsctl --timeout=20 --no-wait set open . external_ids:system-id=h1 \
    external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock external_ids:ovn-encap-type=geneve \
    external_ids:ovn-encap-ip=192.0.2.1
wait_for 120 systemctl is-active --quiet weft-ovn.service
! systemctl is-active --quiet ovs-vswitchd.service || fail "ovs-vswitchd runs beside weft"
number=1
ovn nbctl ls-add blue
for guest in web app; do
    ip link add $guest-host type veth peer name eth0 netns $guest
    ip link set $guest-host mtu 1442 up
    ip -n $guest link set eth0 address 02:00:00:00:00:0$number mtu 1442 up
    ip -n $guest address add 10.0.0.$number/24 dev eth0
    ovn nbctl lsp-add blue $guest -- \
        lsp-set-addresses $guest "02:00:00:00:00:0$number 10.0.0.$number"
    ovs-vsctl --timeout=60 add-port br-int $guest-host -- \
        set interface $guest-host external_ids:iface-id=$guest
    number=3
done
# This returns when ovn-northd and weft have applied the network.
ovn nbctl --wait=hv sync
cfg=$(ovn nbctl get nb_global . hv_cfg)
[ "$cfg" -gt 0 ] && [ "$cfg" = "$(ovn nbctl get nb_global . nb_cfg)" ] || fail "hv_cfg is $cfg"
echo "hv_cfg is nb_cfg: $cfg"
wait_for 20 ip netns exec web ping -q -c 2 -i 0.1 -W 1 10.0.0.3
echo "guests of OVN talk"
before=$(systemctl show --property=MainPID --value weft-ovn.service)
systemctl kill --signal=KILL weft-ovn.service
is_restarted() {
    local now
    now=$(systemctl show --property=MainPID --value weft-ovn.service)
    [ "$now" != 0 ] && [ "$now" != "$before" ] && systemctl is-active --quiet weft-ovn.service
}
wait_for 120 is_restarted
ovn nbctl --wait=hv sync
wait_for 20 ip netns exec web ping -q -c 2 -i 0.1 -W 1 10.0.0.3
journalctl --boot --no-pager --unit=weft-ovn.service --output=json >journal.json
[ "$(message_of id=started | field SYSLOG_IDENTIFIER)" = weft ] || fail "the identifier of weft-ovn"
weft stop --purge --host h1
systemctl stop weft-ovn.service ovn-central.service ovsdb-server.service
for guest in web app; do ip link delete $guest-host; done
systemd-run --quiet --unit=far ip netns exec far \
    weft run --idle 3600 --host h2 /etc/weft/network.toml
systemctl start $unit
talk

step "vhost-net: the kernel moves frames between a machine and its TAP"
cat >vhost.py <<'PYTHON'
import ctypes, fcntl, mmap, os, select, struct, sys, time

# Acts as the hypervisor of a machine that passes its TAP to vhost-net. It replies to echo requests
# through the rings of virtio, and neither reads from nor writes to the TAP.
HEADER, SIZE, COUNT, LIMIT_S = 12, 2048, 64, 60
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), 0x5002))
fcntl.ioctl(tap, 0x400454D8, struct.pack("i", HEADER))
vhost = os.open("/dev/vhost-net", os.O_RDWR)
memory = mmap.mmap(-1, 1 << 20)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))


def call(number, *values, form):
    fcntl.ioctl(vhost, number, struct.pack(form, *values))


call(0xAF01, form="")
call(0x4008AF00, 1 << 32, form="Q")
call(0x4008AF03, 1, 0, base, 1 << 20, base, 0, form="IIQQQQ")


class Ring:
    def __init__(self, index):
        self.desc, self.avail, self.used = ((index << 19) + at for at in (0, 4096, 8192))
        self.data, self.index, self.seen, self.next = (index << 19) + 12288, index, 0, 0
        self.kick, self.call = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
        call(0x4008AF10, index, COUNT, form="II")
        call(0x4008AF12, index, 0, form="II")
        places = (base + at for at in (self.desc, self.used, self.avail))
        call(0x4028AF11, index, 0, *places, 0, form="IIQQQQ")
        call(0x4008AF20, index, self.kick, form="Ii")
        call(0x4008AF21, index, self.call, form="Ii")

    def offer(self, slot, length, flags):
        at = self.data + slot * SIZE
        struct.pack_into("QIHH", memory, self.desc + slot * 16, base + at, length, flags, 0)
        struct.pack_into("H", memory, self.avail + 4 + self.next % COUNT * 2, slot)
        self.next += 1
        struct.pack_into("H", memory, self.avail + 2, self.next & 0xFFFF)
        os.eventfd_write(self.kick, 1)

    def done(self):
        while self.seen & 0xFFFF != struct.unpack_from("H", memory, self.used + 2)[0]:
            at = self.used + 4 + self.seen % COUNT * 8
            self.seen += 1
            yield struct.unpack_from("II", memory, at)


receive, send = Ring(0), Ring(1)
for slot in range(COUNT):
    receive.offer(slot, SIZE, 2)
for ring in (receive, send):
    call(0x4008AF30, ring.index, tap, form="Ii")
print("ready", flush=True)
end, answered = time.monotonic() + LIMIT_S, 0
while time.monotonic() < end and answered < int(sys.argv[2]):
    select.select([receive.call], [], [], 1)
    for slot, length in receive.done():
        at = receive.data + slot * SIZE
        frame = bytearray(memory[at + HEADER : at + length])
        if frame[12:15] == b"\x08\x00\x45" and frame[23] == 1 and frame[34] == 8:
            frame[:12] = frame[6:12] + frame[:6]
            frame[26:34] = frame[30:34] + frame[26:30]
            total = struct.unpack_from("!H", frame, 36)[0] + 0x0800
            struct.pack_into("!BBH", frame, 34, 0, 0, (total & 0xFFFF) + (total >> 16))
            list(send.done())
            to, free = answered % COUNT, send.data + answered % COUNT * SIZE
            memory[free : free + HEADER + len(frame)] = bytes(HEADER) + frame
            send.offer(to, HEADER + len(frame), 0)
            answered += 1
        receive.offer(slot, SIZE, 2)
time.sleep(0.5)
print(f"answered {answered}", flush=True)
PYTHON
modprobe vhost_net
cp /etc/weft/network.toml good.toml
cat >>/etc/weft/network.toml <<'END'

  [[logical_switch.port]]
  name = "machine"
  host = "h1"
  mac = "02:00:00:00:00:09"
  addresses = ["10.0.0.9/24"]
  device = { vm = "tap7" }
END
for datapath in kernel user; do
    echo "WEFT_OPTIONS=--datapath $datapath" >/etc/default/weft
    systemctl restart $unit
    uses $datapath
    wait_for 20 ip link show tap7
    python3 vhost.py tap7 20 >vhost.log 2>&1 &
    machine=$!
    wait_for 20 grep -q ready vhost.log
    ip -n app neigh replace 10.0.0.9 lladdr 02:00:00:00:00:09 dev app0
    ip netns exec app ping -q -c 20 -i 0.2 -W 10 10.0.0.9 | grep ' received'
    wait $machine || fail "the program of the machine: $(cat vhost.log)"
    grep -qx 'answered 20' vhost.log || fail "the program of the machine: $(cat vhost.log)"
    echo "vhost-net and the $datapath datapath: 20 packets there and back"
done
rm /etc/default/weft
cp good.toml /etc/weft/network.toml
systemctl restart $unit
wait_for 20 not_there tap7
talk

step "the other packages"
install_packages "$here"/new/weft-bench_*.deb "$here"/new/weft-dbg_*.deb
weft demo --help | sed -n 1p
dpkg --verify weft-bench weft-dbg

step "stop: the kernel datapath goes on"
start_traffic
systemctl stop $unit
expect_no_loss

step "remove: nothing forwards any more"
systemctl start $unit
talk
ip netns exec far weft stop --purge --host h2
run_apt remove weft weft-bench weft-dbg
left=$(find /sys/fs/bpf -mindepth 1)
[ -z "$left" ] || fail "left in the BPF file system: $left"
[ "$(tc qdisc show dev up0)" = "$qdiscs" ] || fail "left at up0: $(tc qdisc show dev up0)"
[ "$(nft list ruleset)" = "$rules" ] || fail "left in nftables: $(nft list ruleset)"
links=$(ip -o link | sed -E 's/^[0-9]+: ([^:@]+).*/\1/' | sort | xargs)
[ "$links" = 'lo up0' ] || fail "left devices: $links"
for guest in web app db; do
    links=$(ip -n $guest -o link | sed -E 's/^[0-9]+: ([^:@]+).*/\1/' | xargs)
    [ "$links" = lo ] || fail "left devices of $guest: $links"
done
[ ! -e /usr/bin/weft ] || fail "/usr/bin/weft is left"
[ -e /etc/weft/network.toml ] || fail "remove keeps configuration files"

step "purge"
# Only this package has configuration files. apt has already forgotten the other packages.
run_apt purge weft
known=$(dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' 'weft*' 2>dpkg.log |
    grep -v '^not-installed' || true)
[ -z "$known" ] || fail "dpkg still knows: $known"
left=$(find /etc /usr /lib /var/lib /run /sys/fs/bpf -xdev -path /run/netns -prune -o \
    -name '*weft*' -print)
printf 'left: %s\n' "${left:-nothing}"
[ -z "$left" ] || fail "files are left"

printf '\npassed in %s s\n' "$SECONDS"
