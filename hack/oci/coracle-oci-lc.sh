#!/bin/sh
# coracle-oci on libcontainer, for callers that know only of a command without flags.
exec "$(dirname "$0")/coracle-oci" --engine libcontainer "$@"
