#!/usr/bin/env bash
# Installs a Kafka broker for the tests, of the version and with the libraries that `kafka-jars.txt` lists, into the
# user's cache, and Java if there is none (Debian, Ubuntu). Needs the network once. `MAVEN_CENTRAL` names a mirror of
# Maven Central; curl's own variables (`https_proxy`, `CURL_CA_BUNDLE`) hold as always.
set -euo pipefail
cd "$(dirname "$0")"

servers="${XDG_CACHE_HOME:-$HOME/.cache}/millstream/test-servers"
central="${MAVEN_CENTRAL:-https://repo1.maven.org/maven2}"
# The broker's version, and a number that counts up with every change of the list; the tests name both.
broker="$servers/kafka-4.4.0-1"

install() {
    echo "installing: $*"
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo="sudo"
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends "$@"
}

# The broker needs Java 17 or later.
java_version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1 || true)
[ "${java_version:-0}" -ge 17 ] || install default-jre-headless

[ -e "$broker" ] && exit 0
command -v curl >/dev/null || install curl ca-certificates
mkdir -p "$servers"
# What is half done is never found under its final name.
work=$(mktemp -d "$servers/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "fetching: Kafka 4.4.0 and its libraries"
# In the list, a path follows the sum of its file, on a line of its own.
mapfile -t lines < <(grep -v '^#' kafka-jars.txt)
for ((at = 0; at < ${#lines[@]}; at += 2)); do
    jar=$(basename "${lines[at + 1]}")
    printf 'url = "%s/%s"\noutput = "%s/%s"\n' "$central" "${lines[at + 1]}" "$work" "$jar" >>"$work/urls"
    printf '%s  %s\n' "${lines[at]}" "$jar" >>"$work/sums"
done
curl --fail --no-progress-meter --location --retry 5 --parallel --parallel-max 8 --config "$work/urls"
(cd "$work" && sha256sum --check --quiet sums)
rm "$work/urls" "$work/sums"
chmod 755 "$work"
mv "$work" "$broker"
