# shellcheck shell=sh
# How the scripts of the guest check: $failed of $checks were not as they should be.

failed=0 checks=0
# want NAME TEXT COMMAND...: the command says this.
want() {
  name=$1 text=$2
  shift 2
  said=$("$@" 2>&1)
  checks=$((checks + 1))
  [ "$said" = "$text" ] && return
  failed=$((failed + 1))
  printf 'FAIL: %s\n  says  %s\n  not   %s\n' "$name" "$said" "$text"
}
