#!/usr/bin/env bash
# Compiles a crate of the workspace for cargo (RUSTC_WORKSPACE_WRAPPER), and checks it. So CI does
# not process every crate three times, for the compiler, clippy and rustdoc. cargo passes the
# compiler and its arguments. The warnings of all three are printed.
#
# This needs bash, because other shells remove variables with names like CARGO_BIN_EXE_weft-bench.
set -eu
compiler=$1

# rustc compiles a library. clippy checks it when it is compiled a second time with its tests:
# clippy's driver is a compiler with more warnings and less optimization. Tests are not optimized,
# which saves two thirds of the time; the libraries that they call are optimized. Benchmarks are
# only checked.
case " $* " in
*" --crate-type lib "*) "$@" ;;
*" crates/"*"/benches/"*) clippy-driver "${@/#--emit=*/--emit=dep-info,metadata}" ;;
*" --test "*) clippy-driver "$@" -C opt-level=0 ;;
*) clippy-driver "$@" ;;
esac

# rustdoc takes the same arguments, without `--emit` and with another directory. Each crate has a
# separate directory: in a shared one, rustdoc would merge the index of each crate with those of all
# crates before it.
shift
name=
directory=
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    --emit=*) ;;
    --crate-name) name=$2 && arguments+=("$1" "$2") && shift ;;
    --out-dir) directory=$2 && shift ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
# Only libraries and programs are documented. Examples and build scripts are in other directories.
case " ${arguments[*]} " in *" --test "* | *" --cfg test "*) exit ;; esac
[ "${directory##*/}" = deps ] || exit 0
"${compiler%rustc}rustdoc" "${arguments[@]}" --out-dir "${directory%/deps}/doc/$name" \
    --document-private-items --allow=rustdoc::private_intra_doc_links
