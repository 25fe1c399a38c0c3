#!/bin/bash
# Runs one of the system tests of OVN or Open vSwitch, with weft in the place of their programs. The
# tasks `ovn-system-tests` and `ovs-traffic-tests` of xtask call this script. It runs in separate
# namespaces, which end with the script together with all processes and devices in them.
#
#     system-test.sh DIRECTORY TESTSUITE [ARGUMENT...]
#
# DIRECTORY contains atconfig and atlocal; it keeps the log. If UNDERLAY is set, a device gets this
# address.
set -euo pipefail
directory=$1
shift
if [ -z "${SYSTEM_TEST_INSIDE:-}" ]; then
    SYSTEM_TEST_INSIDE=1 exec unshare --mount --net --uts --ipc --pid --fork --kill-child \
        --mount-proc "$0" "$directory" "$@"
fi
mount --make-rprivate /
mkdir -p "$directory/cgroup"
mount --rbind /sys/fs/cgroup "$directory/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$directory/cgroup" /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmpfs /run
hostname chassis
ip link set lo up
if [ -n "${UNDERLAY:-}" ]; then
    # OVN's tests use this address without assigning it to a device. With this MTU, guests can send
    # 1500 bytes through a tunnel.
    ip link add under0 mtu 1558 type veth peer name under1 mtu 1558
    ip link set under1 up
    ip address add "$UNDERLAY" dev under0
    ip link set under0 up
fi
cd "$directory"
exec "$@"
