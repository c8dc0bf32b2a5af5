#!/usr/bin/env bash
# deps.sh: PostgreSQL's server for `make test-database`, from the distribution, without a database of its own.
set -euo pipefail

compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null && exit 0
apt() { env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@"; }
echo "database: installing postgresql"
apt update || true
# The server's package makes and starts a database, unless this file says that it does not.
apt install -y --no-install-recommends postgresql-common >/dev/null
conf=/etc/postgresql-common/createcluster.conf
grep -qs '^create_main_cluster *= *false' "$conf" || echo 'create_main_cluster = false' >>"$conf"
apt install -y --no-install-recommends postgresql >/dev/null
