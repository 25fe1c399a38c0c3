#!/bin/sh
# Puts Debian's kernel for virtual machines into the directory named as argument, with the modules that a guest on a TAP needs:
# the tests of crates/testkit/src/vm.rs boot it, and so does `weft bench exact`, with the modules of what it compares. The package itself is not installed: it would become the host's next kernel.
# Does nothing, quickly, when it is there. Exit 2, after one sentence, when it cannot get it.
set -eu

directory=$1
modules='virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net
    llc stp garp mrp 8021q'
# What hosts and guests made of namespaces need, and who is compared; what these need in turn comes with them.
switches='veth bridge tun udp_tunnel ip6_udp_tunnel vxlan geneve ip_tunnel gre ip_gre crc32c_generic libcrc32c nsh
    nf_defrag_ipv4 nf_defrag_ipv6 nf_conntrack nf_nat nf_conncount nfnetlink nf_conntrack_netlink openvswitch vport-geneve vport-gre vport-vxlan sch_ingress cls_bpf'
[ ! -e "$directory/complete" ] || exit 0

fail() {
    echo "weft: $1" >&2
    exit 2
}
as_root=
[ "$(id -u)" -eq 0 ] || as_root='sudo -n'
command -v apt-get >/dev/null || fail "this is not Debian: put a kernel and its modules into $directory"

mkdir -p "$directory"
work=$(mktemp -d "$directory/unpacking.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The package of the present version, which linux-image-amd64 stands for.
package() {
    apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1
}
download() {
    (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$1" >/dev/null)
}
echo "weft: fetching Debian's kernel for virtual machines"
name=$(package)
if [ -z "$name" ] || ! download "$name"; then
    $as_root apt-get -qq update || true
    name=$(package)
    [ -n "$name" ] || fail "Debian's package linux-image-amd64 is not known here"
    download "$name" || fail "apt-get could not download $name"
fi

set -- --wildcards './boot/vmlinuz-*'
for module in $modules $switches; do
    set -- "$@" "*/$module.ko*"
done
dpkg-deb --fsys-tarfile "$work"/*.deb | tar -x -C "$work" "$@"
find "$work" -name '*.ko.xz' -exec unxz {} +
find "$work" -name '*.ko' -exec mv {} "$directory" \;
# The order in which a guest loads them.
echo $modules >"$directory/modules"
# Last: it says that the rest is there.
mv "$work"/boot/vmlinuz-* "$directory/vmlinuz"
echo "$name" >"$directory/complete"
