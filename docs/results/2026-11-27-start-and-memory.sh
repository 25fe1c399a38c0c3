#!/bin/bash
# Starts weft with many ports and prints when all forward, the memory, and how long reloads take.
# usage: 2026-11-27-start-and-memory.sh WEFT PORTS kernel|user [absent]
# With `absent`, the ports are TAPs in a network namespace that does not exist: no device is made.
set -euo pipefail
weft=$1 ports=$2 datapath=$3 netns=${4:+, netns = \"none\"}
here=start$$ there=peer$$ folder=$(mktemp -d)
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
ip -n "$here" link add eth0 type veth peer name eth0 netns "$there"
ip -n "$here" addr add 192.0.2.1/24 dev eth0
ip -n "$here" link set eth0 up
ip -n "$there" link set eth0 up

# A hundred ports of the first host in each switch. `moved` changes the MAC address of one port.
network() {
	local moved=$1 port
	echo 'tunnel = "vxlan"'
	printf '[[host]]\nname = "h%d"\nuplink = "eth0"\nunderlay = ["192.0.2.%d"]\n' 1 1 2 2
	for ((port = 0; port < ports; port++)); do
		if ((port % 100 == 0)); then
			printf '[[logical_switch]]\nname = "s%d"\nvni = %d\n' $((port / 100)) $((port / 100 + 1))
			printf '[[logical_switch.port]]\nname = "q%d"\nhost = "h2"\nmac = "02:00:01:00:%02x:%02x"\n' \
				$port $((port >> 8 & 255)) $((port & 255))
			printf 'device = { tap = "q%d" }\n' $port
		fi
		printf '[[logical_switch.port]]\nname = "p%d"\nhost = "h1"\nmac = "02:00:%02x:%02x:%02x:%02x"\n' \
			$port $((port == moved ? 2 : 0)) $((port >> 16)) $((port >> 8 & 255)) $((port & 255))
		printf 'device = { tap = "p%d"%s }\n' $port "$netns"
	done
}

network -1 >"$folder/network.toml"
for ((number = 1; number <= 4; number++)); do
	network $((ports / 2 + number)) >"$folder/$number.toml"
done
begin=$(date +%s%N)
ip netns exec "$here" "$weft" run --datapath "$datapath" --host h1 --control "$folder/c.sock" \
	"$folder/network.toml" 2>"$folder/log" &
pid=$!
for ((turn = 0; turn < 6000; turn++)); do
	! grep -q 'id=started' "$folder/log" || break
	kill -0 "$pid"
	sleep 0.005
done
end=$(date +%s%N)
echo "$ports ports, $datapath datapath: started after $(((end - begin) / 1000000)) ms"
grep -E 'VmRSS|RssAnon' "/proc/$pid/status"
echo "processor time in ticks, user and system: $(cut -d' ' -f14,15 "/proc/$pid/stat")"
for ((number = 1; number <= 4; number++)); do
	begin=$(date +%s%N)
	ip netns exec "$here" "$weft" reload --control "$folder/c.sock" "$folder/$number.toml" >/dev/null
	end=$(date +%s%N)
	echo "reload with one changed port: $(((end - begin) / 1000000)) ms"
done
