#!/bin/bash
# Starts weft with many ports, scrapes its metrics a hundred times, and prints how long that takes.
# usage: 2026-11-26-metrics.sh WEFT PORTS DEVICES kernel|user
# The first DEVICES ports are TAPs that exist. The others are TAPs in a network namespace that does not exist.
set -euo pipefail
weft=$1 ports=$2 devices=$3 datapath=$4
here=scrape$$ there=peer$$ folder=$(mktemp -d)
cleanup() {
	[ -z "${pid:-}" ] || kill "$pid" 2>/dev/null || true
	wait
	ip netns exec "$here" "$weft" stop --purge --control "$folder/c.sock" >/dev/null 2>&1 || true
	ip netns del "$here" || true
	ip netns del "$there" || true
	rm -rf "$folder"
}
ip netns add "$here"
ip netns add "$there"
trap cleanup EXIT
ip -n "$here" link set lo up
ip -n "$here" link add eth0 type veth peer name eth0 netns "$there"
ip -n "$here" addr add 192.0.2.1/24 dev eth0
ip -n "$here" link set eth0 up
ip -n "$there" link set eth0 up

{
	echo 'tunnel = "vxlan"'
	printf '[[host]]\nname = "h%d"\nuplink = "eth0"\nunderlay = ["192.0.2.%d"]\n' 1 1 2 2
	for ((port = 0; port < ports; port++)); do
		if ((port % 100 == 0)); then
			printf '[[logical_switch]]\nname = "s%d"\nvni = %d\n' $((port / 100)) $((port / 100 + 1))
			printf '[[logical_switch.port]]\nname = "q%d"\nhost = "h2"\nmac = "02:00:01:00:%02x:%02x"\n' \
				$port $((port >> 8 & 255)) $((port & 255))
			printf 'device = { tap = "q%d" }\n' $port
		fi
		absent=', netns = "none"'
		((port >= devices)) || absent=
		printf '[[logical_switch.port]]\nname = "p%d"\nhost = "h1"\nmac = "02:00:00:00:%02x:%02x"\n' \
			$port $((port >> 8 & 255)) $((port & 255))
		printf 'device = { tap = "p%d"%s }\n' $port "$absent"
	done
} >"$folder/network.toml"
ip netns exec "$here" "$weft" run --datapath "$datapath" --host h1 --control "$folder/c.sock" \
	--metrics 127.0.0.1:9478 "$folder/network.toml" 2>"$folder/log" &
pid=$!
for ((turn = 0; turn < 24000; turn++)); do
	! grep -q 'id=started' "$folder/log" || break
	kill -0 "$pid"
	sleep 0.005
done
ticks() { awk '{ print $14 + $15 }' "/proc/$pid/stat"; }
before=$(ticks)
for ((turn = 0; turn < 100; turn++)); do
	ip netns exec "$here" curl -s -o "$folder/text" -H 'Accept: application/openmetrics-text' \
		-w '%{time_total}\n' http://127.0.0.1:9478/metrics
	sleep 0.1
done | sort -n >"$folder/times"
spent=$(($(ticks) - before))
samples=$(grep -vc '^#' "$folder/text")
echo "$ports ports, $devices devices, $datapath datapath: $samples samples, $(wc -c <"$folder/text") bytes"
awk '{ t[NR] = 1000 * $1 } END {
	printf "ms: median %.0f, 90 of 100 %.0f, longest %.0f\n", t[50], t[90], t[100] }' "$folder/times"
echo "processor time of the daemon meanwhile: $spent ticks; $(grep VmRSS "/proc/$pid/status")"
[ "$(awk 'END { print ($1 < 0.2) }' "$folder/times")" = 1 ] || { echo "too slow" >&2; exit 1; }
