#!/usr/bin/env bash
# Installs the peers and servers that benches/run uses, where they are missing (Debian, Ubuntu). DuckDB, Polars,
# rapidgzip, Celery, dlt, Ray, PySpark, Airflow and Prefect come from PyPI, as benches/requirements*.txt pin them.
set -euo pipefail

declare -A package_of=(
    [cc]=build-essential [curl]=curl [igzip]=isal [java]=default-jre-headless [kcat]=kcat
    [mariadbd]=mariadb-server [nginx]=nginx-light [parallel]=parallel [pigz]=pigz [postgres]=postgresql
    [python3]=python3 [redis-server]=redis-server [rg]=ripgrep [sqlite3]=sqlite3 [unzip]=unzip [wget]=wget [wrk]=wrk
    [zcat]=gzip [zstd]=zstd
)
missing=()
# Debian keeps the programs of PostgreSQL in a folder for each version.
PATH="$PATH:/usr/sbin:$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')"
for command in "${!package_of[@]}"; do
    command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
[ ${#missing[@]} -eq 0 ] && exit 0

echo "installing: ${missing[*]}"
sudo=""
[ "$(id -u)" -eq 0 ] || sudo="sudo"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# Packages of servers would start them, and take ports that are in use. The benchmarks start their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod 755 "$policy"
    trap '$sudo rm -f "$policy"' EXIT
fi
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
