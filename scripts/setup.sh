#!/bin/sh
# Makes .venv with everything klamm, its tests and its demo need, pinned by requirements/*.lock.
# Needs Python 3.11 or newer and a package index; safe to run again: the second run only looks at a stamp.
#   PYTHON=/path/to/python3.12 sh scripts/setup.sh    chooses the interpreter
#   TOOLS="java maven" sh scripts/setup.sh            also installs these meanwhile: see scripts/with_tools.py
set -eu
cd "$(dirname "$0")/.."
root=$(pwd -P)
venv=$root/.venv
stamp=$venv/.klamm-setup

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

# --- is there anything to do? ---------------------------------------------------------------------------------------
state="$root $(cat pyproject.toml requirements/*.lock scripts/setup.sh | cksum)"
if [ -x "$venv/bin/klamm" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$state" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

# --- with whose rights? ---------------------------------------------------------------------------------------------
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}
may_install() {
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }
}

# --- which Python? --------------------------------------------------------------------------------------------------
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}
python=$(find_python)
[ -n "$python" ] || fail "no Python 3.11 or newer among ${PYTHON:-python3, python3.11 ... python3.14};" \
    "install one (Debian, Ubuntu: apt-get install python3 python3-venv; Fedora: dnf install python3.12;" \
    "macOS: brew install python@3.12) or name it: PYTHON=/path/to/python3 make setup"

# --- the virtual environment ----------------------------------------------------------------------------------------
# Debian and Ubuntu ship python3 without ensurepip, so "python3 -m venv" exists there and fails.
has_venv() { "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }

by_venv() { has_venv && "$python" -m venv "$venv"; }
by_virtualenv() { "$python" -m virtualenv --quiet "$venv" 2>/dev/null; }
by_uv() { command -v uv >/dev/null 2>&1 && uv venv --quiet --seed --python "$python" "$venv"; }
by_pip() {
    "$python" -m pip --version >/dev/null 2>&1 || return 1
    say "this Python has no venv module: taking virtualenv by pip"
    "$python" -m pip install --quiet --require-hashes --requirement requirements/virtualenv.lock \
        --target "$root/.cache/virtualenv" --upgrade &&
        PYTHONPATH=$root/.cache/virtualenv "$python" -m virtualenv --quiet "$venv"
}
by_package_manager() {
    command -v apt-get >/dev/null 2>&1 && may_install || return 1
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    say "this Python has no venv module: installing python$version-venv by apt-get"
    as_root apt-get update -qq || true
    for package in "python$version-venv" python3-venv; do
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >&2 && by_venv && return
    done
    return 1
}
make_venv() {
    for way in by_venv by_virtualenv by_uv by_pip by_package_manager; do
        rm -rf "$venv"
        if $way; then return; fi
    done
    rm -rf "$venv"
    fail "$python can make no virtual environment: it lacks venv and pip, and nothing may be installed here." \
        "Run: sudo apt-get install python3-venv (or your system's equivalent), then again"
}

# What was made elsewhere (a moved clone), or by a Python that is gone, is made again.
usable() {
    new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1 &&
        case "$(cat "$stamp" 2>/dev/null)" in "" | "$root "*) true ;; *) false ;; esac
}
if ! usable; then
    say "making .venv with $("$python" --version 2>&1)"
    make_venv
fi
rm -f "$stamp"

# --- what runs at once ----------------------------------------------------------------------------------------------
# Java, Maven and so on, by the system's package manager. What fails here is reported when it is needed.
tools=
if [ -n "${TOOLS:-}" ] && may_install; then
    PYTHONPATH=$root/src "$python" scripts/with_tools.py $TOOLS -- true >/dev/null &
    tools=$!
fi

# What follows waits for network and disk most of the time. Meanwhile klamm is compiled, which its first program would do.
# Where no bytecode can be written, that one does it as before.
"$venv/bin/python" -m compileall -q src &
compiled=$!

# --- the packages ---------------------------------------------------------------------------------------------------
# Spark comes as source only and is the largest by far. Its jars are compressed already, so that its wheel stores its files
# as they are: half the time of the build. Nothing is compiled: most modules of these packages are never imported.
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
say "installing the pinned packages (Spark is the big one: some 450 MB)"
stored=$venv/stored.cfg
printf '[bdist_wheel]\ncompression = stored\n' >"$stored"
pinned="--quiet --require-hashes --no-deps --no-build-isolation --requirement"
# shellcheck disable=SC2086
by_pip_itself() { DIST_EXTRA_CONFIG=$stored pip install --no-compile $pinned "$1"; }
# uv takes half of the time, but knows no settings of pip: whoever sets where pip looks gets it from there. As pip does, uv
# trusts the system's certificates.
# shellcheck disable=SC2086
by_uv_itself() {
    ! pip config list | grep -qE '\.(index-url|extra-index-url|no-index|proxy|client-cert|trusted-host)=' &&
        DIST_EXTRA_CONFIG=$stored "$venv/bin/uv" pip install --python "$venv/bin/python" --system-certs $pinned "$1"
}
by_pip_itself requirements/build.lock
by_uv_itself requirements/dev.lock || by_pip_itself requirements/dev.lock
# Java uses a class archive only with the very jars that it was written from, by their times: see docs/adr, 25. With the
# same times everywhere, CI uses the archive of an earlier run.
find "$venv" -path '*/pyspark/jars/*.jar' -exec touch -d 2020-01-01T00:00:00Z {} +
pip install --quiet --no-deps --no-build-isolation --editable .
wait "$compiled" || true
[ -z "$tools" ] || wait "$tools" || true
printf '%s\n' "$state" >"$stamp"
say "ready: .venv/bin/klamm"
