#!/usr/bin/env bash
# deps.sh: PostgreSQL's server for `make test-database`, from the distribution, without a database of its own.
set -euo pipefail

compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null && exit 0
command -v apt-get >/dev/null || {
  echo "database: no apt-get here; install PostgreSQL's server by hand" >&2
  exit 1
}
apt() { env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@"; }
echo "database: installing postgresql"
apt update || true
# The server's package makes and starts a database, unless this file says that it does not.
apt install -y --no-install-recommends postgresql-common >/dev/null
conf=/etc/postgresql-common/createcluster.conf
line='create_main_cluster = false # hack/database/deps.sh'
# A later PostgreSQL of this machine is its owner's again.
trap 'sed -i "\\|^$line\$|d" "$conf"' EXIT
echo "$line" >>"$conf"
apt install -y --no-install-recommends postgresql >/dev/null
