#!/bin/sh
# Makes sure that xtask can be built: installs a linker and cargo if they are missing. xtask does
# everything else.
set -eu

command -v cc >/dev/null || "$(dirname "$0")/install-packages.sh" gcc libc6-dev
if ! command -v cargo >/dev/null; then
    echo "weft: cargo is not in PATH: install Rust 1.95 or later with rustup" >&2
    exit 2
fi
