#!/usr/bin/env bash
# Compiles a crate of the workspace for cargo (RUSTC_WORKSPACE_WRAPPER), and checks it, so that CI
# does not read every crate once for the compiler, once for clippy and once for rustdoc. cargo
# passes the compiler and its arguments. The warnings of all three are printed.
#
# This is bash because other shells remove variables like CARGO_BIN_EXE_weft-bench.
set -eu
compiler=$1

# A library is compiled by rustc, and a second time with its tests: then clippy checks it. clippy's
# driver is a compiler with more warnings that optimizes less. Tests are not optimized, which takes
# a third of the time; the libraries that they call are. Benchmarks are only checked.
case " $* " in
*" --crate-type lib "*) "$@" ;;
*" crates/"*"/benches/"*) clippy-driver "${@/#--emit=*/--emit=dep-info,metadata}" ;;
*" --test "*) clippy-driver "$@" -C opt-level=0 ;;
*) clippy-driver "$@" ;;
esac

# rustdoc takes the same arguments, without `--emit` and with another directory. Each crate has its
# own: in a common one, rustdoc would merge the index of each crate with those of all before it.
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
# Only libraries and programs are documented. Examples and build scripts have other directories.
case " ${arguments[*]} " in *" --test "* | *" --cfg test "*) exit ;; esac
[ "${directory##*/}" = deps ] || exit 0
"${compiler%rustc}rustdoc" "${arguments[@]}" --out-dir "${directory%/deps}/doc/$name" \
    --document-private-items --allow=rustdoc::private_intra_doc_links
