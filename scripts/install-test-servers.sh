#!/usr/bin/env bash
# Installs the servers of the tests that Debian has no package of, in the versions that the tests name, into the user's
# cache: an emulator of Google Cloud Storage and one of Azure Blob Storage. Needs the network once.
set -euo pipefail

servers="${XDG_CACHE_HOME:-$HOME/.cache}/millstream/test-servers"
# The last one that Debian 12's Go (1.19) builds and that tells the version of an object when it is read.
gcs=1.47.7
# The last one that runs on Debian 12's Node.js (18).
azurite=3.35.0

need() {
    command -v "$1" >/dev/null && return
    echo "installing: $2"
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo="sudo"
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends $2
}

mkdir -p "$servers"
# What is half done is never found under its final name.
work=$(mktemp -d "$servers/work.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

if [ ! -e "$servers/fake-gcs-server-$gcs" ]; then
    need go "golang-go ca-certificates"
    echo "building: fake-gcs-server $gcs"
    mkdir "$work/gcs"
    GOFLAGS=-modcacherw GOPATH="$work/go" GOCACHE="$work/go-cache" GOBIN="$work/gcs" \
        go install "github.com/fsouza/fake-gcs-server@v$gcs"
    mv "$work/gcs" "$servers/fake-gcs-server-$gcs"
fi

need node nodejs
if [ ! -e "$servers/azurite-$azurite" ]; then
    need npm npm
    echo "installing: azurite $azurite"
    mkdir "$work/azurite"
    npm install --prefix "$work/azurite" --cache "$work/npm-cache" --no-audit --no-fund --ignore-scripts \
        --omit=dev --omit=optional --loglevel=error "azurite@$azurite"
    mv "$work/azurite" "$servers/azurite-$azurite"
fi
