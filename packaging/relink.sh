#!/bin/sh
# relink.sh PROGRAM OUTPUT: links a program of this release again from its objects, statically, with the libseccomp and the
# C library of the compiler CC (default: CC_DEFAULT). LDFLAGS=-L/DIR takes other builds of them. With the versions
# of the release, the output is the released program, but for the 32 bytes of a checksum that FIPS mode reads.
set -eu
program=$1 output=$2
case $output in /*) ;; *) output=$PWD/$output ;; esac
cd "$(dirname "$0")/$program"
# The arguments of the linker have no spaces.
# shellcheck disable=SC2046,SC2086
exec ${CC:-CC_DEFAULT} ${LDFLAGS:-} -o "$output" $(cat arguments)
