#!/usr/bin/env bash
# Installs what the tests need and Debian has no package of, in the versions that the tests name, into the user's cache:
# an emulator of Google Cloud Storage and one of Azure Blob Storage, and the Python libraries that read Parquet files
# and take rows, with what runs the tests of the Python package.
# Needs the network once.
set -euo pipefail

servers="${XDG_CACHE_HOME:-$HOME/.cache}/millstream/test-servers"
# The last one that Debian 12's Go (1.19) builds and that tells the version of an object when it is read.
gcs=1.47.7
# The last one that runs on Debian 12's Node.js (18).
azurite=3.35.0
# What reads the Parquet files that Millstream writes, and writes some that it reads; what takes its rows in Python.
libraries=(
    pyarrow==26.0.1 pandas==3.1.1 polars==2.1.0 duckdb==2.0.0 pytest==9.2.0
    # What these need.
    numpy==2.4.6 polars-runtime-32==2.1.0 python-dateutil==4.0.0 tzdata==2026.6
    iniconfig==2.3.1 packaging==26.3 pluggy==1.7.0 pygments==2.21.0
)
# Counts up with every change of `libraries`; the tests name it too.
libraries_version=1

install() {
    echo "installing: $*"
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo="sudo"
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends "$@"
}

# The command $1, from the packages that follow.
need() {
    command -v "$1" >/dev/null || install "${@:2}"
}

mkdir -p "$servers"
# What is half done is never found under its final name.
work=$(mktemp -d "$servers/work.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

if [ ! -e "$servers/fake-gcs-server-$gcs" ]; then
    need go golang-go ca-certificates
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

if [ ! -e "$servers/python-libraries-$libraries_version" ]; then
    need python3 python3
    # Debian leaves `ensurepip`, which puts pip into an environment, to a package of its own.
    python3 -c "import ensurepip, venv" 2>/dev/null || install python3-venv
    echo "installing: ${libraries[*]}"
    python3 -m venv "$work/libraries"
    "$work/libraries/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
        --cache-dir "$work/pip-cache" "${libraries[@]}"
    "$work/libraries/bin/python" -c "import duckdb, pandas, polars, pyarrow.parquet, pytest"
    # Only the scripts in `bin` hold their path, and they are not called.
    mv "$work/libraries" "$servers/python-libraries-$libraries_version"
fi
