#!/usr/bin/env bash
# extld.sh ARGUMENTS: the linker of programs that contain libseccomp and the C library. It calls $CC, and keeps what it is
# given in $RELINK: users of a release can link the program again, with other versions of those libraries (LGPL-2.1, 6a).
set -euo pipefail
# CC may have arguments.
read -ra cc <<<"${CC:-gcc}"
for a in "$@"; do
  # The linker first asks for options that are there, without the program's object.
  [[ $a == */go.o ]] || continue
  rm -rf "$RELINK"
  mkdir -p "$RELINK/objects"
  arguments=()
  skip=
  for b in "$@"; do
    if [[ $skip ]]; then
      skip=
    elif [[ $b == -o ]]; then
      skip=1
    elif [[ $b == *.o ]]; then
      cp "$b" "$RELINK/objects/"
      arguments+=("objects/${b##*/}")
    elif [[ $b != -L/* ]]; then # where this machine has its libraries
      arguments+=("$b")
    fi
  done
  printf '%s\n' "${arguments[@]}" >"$RELINK/arguments"
done
exec "${cc[@]}" "$@"
