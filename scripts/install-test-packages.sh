#!/usr/bin/env bash
# Installs the servers and tools that the tests start themselves, where they are missing (Debian, Ubuntu).
set -euo pipefail

declare -A package_of=(
    [bzip2]=bzip2 [cc]=build-essential [mkfs.ext4]=e2fsprogs [nginx]=nginx-light [proftpd]="proftpd-core proftpd-mod-crypto" [python3]=python3 [script]=bsdutils
    [sqlite3]=sqlite3 [ssh-agent]=openssh-client [sshd]=openssh-server [unshare]=util-linux [xz]=xz-utils [zstd]=zstd
)
missing=()
for command in "${!package_of[@]}"; do
    # One command may need several packages.
    # shellcheck disable=SC2206
    PATH="$PATH:/usr/sbin" command -v "$command" >/dev/null || missing+=(${package_of[$command]})
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "installing: ${missing[*]}"
sudo=""
[ "$(id -u)" -eq 0 ] || sudo="sudo"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
