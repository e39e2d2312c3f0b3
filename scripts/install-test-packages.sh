#!/usr/bin/env bash
# Installs the servers and tools that the tests start themselves, where they are missing (Debian, Ubuntu). With `pages`,
# those that build the pages of the server and try them, too.
set -euo pipefail

declare -A package_of=(
    [bzip2]=bzip2 [c++]=build-essential [cc]=build-essential [ip]=iproute2 [make]=build-essential
    [mariadbd]=mariadb-server [mkfs.ext4]=e2fsprogs [nginx]=nginx-light
    [postgres]=postgresql [proftpd]="proftpd-core proftpd-mod-crypto" [python3]=python3
    [redis-server]=redis-server [script]=bsdutils
    [setpriv]=util-linux
    [sqlite3]=sqlite3 [ssh-agent]=openssh-client [sshd]=openssh-server [unshare]=util-linux [xz]=xz-utils [zstd]=zstd
)
# What the tests of the pages need, and nothing else does.
[ "${1:-}" = pages ] && package_of+=([chromium]=chromium [node]=nodejs [npm]=npm)
missing=()
# Debian keeps the programs of PostgreSQL in a folder for each version.
PATH="$PATH:/usr/sbin:$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')"
for command in "${!package_of[@]}"; do
    # One command may need several packages.
    # shellcheck disable=SC2206
    command -v "$command" >/dev/null || missing+=(${package_of[$command]})
done
# What configures OpenSSL needs more of Perl than Debian always has.
perl -MFindBin -MIPC::Cmd -e 1 2>/dev/null || missing+=(perl)
[ ${#missing[@]} -eq 0 ] && exit 0

echo "installing: ${missing[*]}"
sudo=""
[ "$(id -u)" -eq 0 ] || sudo="sudo"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# Packages of servers would start them, and take ports that are in use. The tests start their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod 755 "$policy"
    trap '$sudo rm -f "$policy"' EXIT
fi
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
