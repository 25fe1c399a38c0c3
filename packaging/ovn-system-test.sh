#!/bin/bash
# One of OVN's system tests, with weft as the chassis. `cargo xtask ovn-system-tests` calls it. It
# runs in namespaces of its own, which take all of it along when it ends.
#
#     ovn-system-test.sh DIRECTORY TESTSUITE [ARGUMENT...]
#
# DIRECTORY has atconfig and atlocal, and keeps the log.
set -euo pipefail
directory=$1
shift
if [ -z "${OVN_SYSTEM_TEST_INSIDE:-}" ]; then
    OVN_SYSTEM_TEST_INSIDE=1 exec unshare --mount --net --uts --ipc --pid --fork --kill-child \
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
# The tests name this address of the underlay without giving it to a device. With this MTU, guests
# have 1500 bytes.
ip link add under0 mtu 1558 type veth peer name under1 mtu 1558
ip link set under1 up
ip address add 169.0.0.1/24 dev under0
ip link set under0 up
cd "$directory"
exec "$@"
