#!/bin/sh
# Downloads another kernel of Debian into a directory, for `cargo xtask kernels`:
#
#     fetch-other-kernel.sh DIRECTORY SUITE PACKAGE
#
# PACKAGE is a metapackage such as linux-image-amd64, and SUITE is the suite that contains it, such
# as trixie-backports. The host's own list of suites is not changed, and nothing is installed. On
# failure, prints one sentence and exits with 2.
set -eu

directory=$1 suite=$2 package=$3
# Modules that are built into a newer kernel are left out.
card='virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover dimlib virtio_net'
switches='veth sch_ingress cls_bpf'

fail() {
    echo "weft: $1" >&2
    exit 2
}
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
work=$(mktemp -d "$directory/unpacking.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$work/lists/partial" "$work/root"
case $suite in
*-security) archive=http://deb.debian.org/debian-security ;;
*) archive=http://deb.debian.org/debian ;;
esac
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $suite main" >"$work/suite.list"
apt() {
    command=$1
    shift
    "apt-$command" -qq -o Dir::Etc::SourceList="$work/suite.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o APT::Sandbox::User=root "$@"
}
apt get update || fail "apt-get could not read the suite $suite of $archive"
kernel=$(apt cache depends "$package" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$kernel" ] || fail "the suite $suite has no package $package"
if [ -e "$directory/complete" ] && [ "$(cat "$directory/complete")" = "$kernel" ]; then
    exit 0
fi
# Newer kernels have separate packages for their image and their modules.
parts=$(apt cache depends "$kernel" | sed -n 's/^ *Depends: \(linux-\(binary\|modules\)-[0-9].*\)/\1/p')
for name in $kernel $parts; do
    (cd "$work" && apt get download "$name" >/dev/null) || fail "apt-get could not download $name"
done

for file in "$work"/*.deb; do
    dpkg-deb --fsys-tarfile "$file" | tar -x -C "$work/root"
done
find "$work/root" -name '*.ko.xz' -exec unxz {} +
find "$work/root" -name '*.ko.zst' -exec zstd -q --rm -d {} +
rm -f "$directory"/*.ko "$directory/complete"
loaded=
for module in $card $switches; do
    found=$(find "$work/root" -name "$module.ko" | head -n 1)
    [ -z "$found" ] || cp "$found" "$directory/"
done
for module in $card; do
    [ ! -e "$directory/$module.ko" ] || loaded="$loaded $module"
done
echo $loaded >"$directory/modules"

# An emulated processor takes longer to unpack a bzImage than to boot the kernel, so it gets the ELF
# file.
image=$(find "$work/root" -name 'vmlinuz*' -type f | head -n 1)
[ -n "$image" ] || fail "$kernel has no kernel image"
unpack() {
    offset=$(LC_ALL=C grep -aboP -m1 "$1" "$image" | head -n 1 | cut -d: -f1)
    [ -n "$offset" ] || return 1
    shift
    # Other data follows the compressed kernel. The program reports this as an error after it has
    # written the whole kernel.
    tail -c "+$((offset + 1))" "$image" | "$@" >"$directory/vmlinux" 2>/dev/null || true
    [ "$(head -c 4 "$directory/vmlinux" | tail -c 3)" = ELF ]
}
unpack '\xfd7zXZ\x00' xz -dcq --single-stream || unpack '\x28\xb5\x2f\xfd' zstd -dcq ||
    fail "$kernel: cannot unpack the kernel image"
# The file `complete` marks a finished download, so it is written last.
echo "$kernel" >"$directory/complete"
