#!/usr/bin/env bash
# Installs the peers and servers that benches/run uses, where they are missing (Debian, Ubuntu). DuckDB, Polars and
# rapidgzip come from PyPI, in the versions that benches/requirements.txt pins.
set -euo pipefail

declare -A package_of=(
    [cc]=build-essential [curl]=curl [igzip]=isal [nginx]=nginx-light [parallel]=parallel [pigz]=pigz [python3]=python3
    [unzip]=unzip [wget]=wget [wrk]=wrk [zcat]=gzip [zstd]=zstd
)
missing=()
for command in "${!package_of[@]}"; do
    PATH="$PATH:/usr/sbin" command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
[ ${#missing[@]} -eq 0 ] && exit 0

echo "installing: ${missing[*]}"
sudo=""
[ "$(id -u)" -eq 0 ] || sudo="sudo"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
