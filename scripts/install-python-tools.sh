#!/usr/bin/env bash
# Installs what builds the Python package into the user's cache, unless it is there, and prints its folder.
set -euo pipefail

maturin=1.16.0
tools="${XDG_CACHE_HOME:-$HOME/.cache}/millstream/python-tools-$maturin"
if [ ! -e "$tools/bin/maturin" ]; then
    # Debian leaves `ensurepip`, which puts pip into an environment, to a package of its own.
    if ! python3 -c "import ensurepip, venv" 2>/dev/null; then
        sudo=""
        [ "$(id -u)" -eq 0 ] || sudo="sudo"
        export DEBIAN_FRONTEND=noninteractive
        { $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends python3-venv; } >&2
    fi
    echo "installing: maturin $maturin" >&2
    rm -rf "$tools"
    mkdir -p "$(dirname "$tools")"
    python3 -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "maturin==$maturin" >&2
fi
echo "$tools"
