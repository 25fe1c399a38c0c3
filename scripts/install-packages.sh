#!/bin/sh
# Installs those of the Debian packages in the arguments that are missing, and prints their names.
# Does nothing, quickly, if none is missing. If it cannot install them, it prints one sentence and
# exits with 2.
#
# This is a shell script because it runs before there is a linker to build xtask.
set -eu

missing=
native=$(dpkg --print-architecture 2>/dev/null || true)
for package in "$@"; do
    case "$package" in
    *:*) architecture=${package#*:} ;;
    *) architecture=$native ;;
    esac
    # A package may be installed for several architectures.
    states=$(dpkg-query --show --showformat=' ${db:Status-Status}/${Architecture} ' "$package" 2>/dev/null || true)
    case "$states" in
    *" installed/$architecture "* | *" installed/all "*) ;;
    *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0
missing=${missing# }

if ! command -v apt-get >/dev/null; then
    echo "weft: this is not Debian: install what Debian calls: $missing" >&2
    exit 2
elif [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }; then
    as_root=sudo
else
    echo "weft: install the missing packages as root: apt-get install --no-install-recommends $missing" >&2
    exit 2
fi

# By default, Debian starts the daemon of a package when it is installed and at every boot. This is
# not wanted here: the kernel module that Open vSwitch's daemon loads would slow down the networking
# that weft measures. Debian asks the program policy-rc.d whether a daemon may be started (101: no).
# If the host already has one, it is kept.
policy=/usr/sbin/policy-rc.d
policy_is_ours=
forbid_daemons() {
    [ ! -e "$policy" ] || return 0
    policy_is_ours=yes
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
}
allow_daemons() {
    [ -z "$policy_is_ours" ] || $as_root rm -f "$policy"
    policy_is_ours=
}
trap allow_daemons EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "weft: installing Debian packages: $missing"
apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq -o DPkg::Lock::Timeout=120 "$@"
}
# `update` may fail because of an outdated third-party source, although Debian's own packages are
# available. So only a failure of `install` is an error.
apt update || echo "weft: apt-get update failed; trying with the package lists that are there" >&2
forbid_daemons
# shellcheck disable=SC2086  # $missing is a list
if ! apt install --yes --no-install-recommends $missing >/dev/null; then
    echo "weft: apt-get could not install: $missing" >&2
    exit 2
fi
for daemon in openvswitch-switch prometheus; do
    case " $missing " in
    *" $daemon "*)
        $as_root update-rc.d "$daemon" disable
        ;;
    esac
done
