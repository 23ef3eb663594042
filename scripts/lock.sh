#!/bin/sh
# Writes the lock files in requirements/ again from pyproject.toml.
#   sh scripts/lock.sh            keeps what is pinned already where it still fits
#   sh scripts/lock.sh --upgrade  takes the newest of everything
# Host names never get into them: whoever installs chooses the package index.
set -eu
cd "$(dirname "$0")/.."

lock() {
    output=$1
    shift
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate --output-file "requirements/$output" "$@"
}

lock virtualenv.lock "$@" --group virtualenv
lock build.lock "$@" --group build
lock runtime.lock "$@" --extra spark --extra security --extra uvloop pyproject.toml
lock dev.lock "$@" --constraint requirements/runtime.lock --extra spark --extra security --extra uvloop --group dev pyproject.toml
# The images of Containerfile.
lock broker.lock "$@" --constraint requirements/runtime.lock --extra security --extra uvloop pyproject.toml
lock wheel.lock "$@" --constraint requirements/dev.lock --group wheel
if grep -n '://' requirements/*.lock; then
    echo "a lock file names a host" >&2
    exit 1
fi
