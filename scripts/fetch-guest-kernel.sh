#!/bin/sh
# Downloads Debian's kernel into the directory in the argument, with the modules that `weft bench
# exact` and the tests' virtual machines load. The package is not installed, because it would become
# the host's next kernel. Does nothing if the kernel is present. On failure, prints one sentence and
# exits with 2.
set -eu

directory=$1
modules='virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net
    llc stp garp mrp 8021q'
# The modules of the virtual switches that `weft bench exact` compares, and their dependencies.
switches='veth bridge tun udp_tunnel ip6_udp_tunnel vxlan geneve ip_tunnel gre ip_gre crc32c_generic libcrc32c nsh
    nf_tables nft_ct nf_conntrack_bridge nf_defrag_ipv4 nf_defrag_ipv6 nf_conntrack nf_nat nf_conncount nfnetlink nf_conntrack_netlink openvswitch vport-geneve vport-gre vport-vxlan sch_ingress cls_bpf'
# Returns true if an earlier download is complete. An older download may lack a module.
is_complete() {
    for file in complete vmlinux $(printf '%s.ko ' $modules $switches); do
        [ -e "$directory/$file" ] || return 1
    done
}
if is_complete; then exit 0; fi

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

# Prints the name of the package on which the metapackage linux-image-amd64 depends.
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
# The order in which a guest loads the modules.
echo $modules >"$directory/modules"
# An emulated processor takes longer to unpack a bzImage than to boot the kernel, so it gets the ELF
# file.
offset=$(LC_ALL=C grep -aboP -m1 '\xfd7zXZ\x00' "$work"/boot/vmlinuz-* | head -n 1 | cut -d: -f1)
[ -n "$offset" ] || fail "$name: the kernel image holds no xz data, so it cannot be unpacked"
# Other data follows the xz stream. xz reports this as an error after it has written the whole
# kernel.
tail -c "+$((offset + 1))" "$work"/boot/vmlinuz-* | xz -dcq --single-stream >"$directory/vmlinux" || true
[ "$(head -c 4 "$directory/vmlinux" | tail -c 3)" = ELF ] || fail "$name: cannot unpack the kernel image"
# The file `complete` marks a finished download, so it is written last.
echo "$name" >"$directory/complete"
