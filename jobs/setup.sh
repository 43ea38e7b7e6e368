#!/usr/bin/env bash
# Makes .venv in the project's root, and fetches all that txnqueue needs to run on this machine.
#
#   bash jobs/setup.sh
#
# The first start takes a minute or two, the next ones under a second: .venv keeps a stamp of
# what it was made from. Java 17 or newer is looked for in JAVA_HOME, else on the path.
# PYTHON names the Python to use for a new .venv.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
log=$root/.venv/setup.log

stop() { echo "setup: $*" >&2; exit 1; }
note() { echo "setup: $*" >&2; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' \
            >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    stop "no Python 3.10 or newer with venv was found: install one (Debian: python3-venv), or name it in PYTHON."
}

java_major() {  # of the Java that Spark would start; empty if there is none
    local java=java
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
    # "17.0.15" is 17, and so was "1.8.0" 8.
    "$java" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1 || true
}

ensure_java() {
    local major
    major=$(java_major)
    [ "${major:-0}" -lt 17 ] || return 0
    if [ -z "${JAVA_HOME:-}" ] && [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then
        note "installing OpenJDK 17"
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y \
            openjdk-17-jre-headless; } >"$log" 2>&1 \
            || stop "OpenJDK 17 could not be installed, $log says why: install Java 17 or newer."
        major=$(java_major)
        [ "${major:-0}" -lt 17 ] || return 0
    fi
    stop "Spark needs Java 17 or newer: install one (Debian: apt-get install openjdk-17-jre-headless), and set JAVA_HOME if it is not on the path."
}

stamp_now() {  # what .venv is made from, and where: a virtual environment cannot be moved
    { echo "$root"; cat "$root/pyproject.toml" "$root/conf/constraints.txt"; } | cksum
}

install() {
    # A .venv that lacks a working Python is replaced; one that works is brought up to date.
    if ! "$root/.venv/bin/python" -m pip --version >/dev/null 2>&1; then
        local python
        python=$(find_python)
        note "making .venv with $("$python" --version)"
        "$python" -m venv --clear "$root/.venv"
    fi
    note "installing what pyproject.toml names"
    (cd "$root" && .venv/bin/python -m pip install -q --disable-pip-version-check \
        -c conf/constraints.txt -e '.[spark,cli,report,plots,metrics,connect,demo,postgres,notebook,docs,test]') >"$log" 2>&1 \
        || { tail -n 20 "$log" >&2; stop "pip could not install it; all of its output is in $log."; }
    # The one package without wheels: nothing but the octets of AMQP needs it.
    (cd "$root" && .venv/bin/python -m pip install -q --disable-pip-version-check \
        -c conf/constraints.txt -e '.[amqp]') >"$log" 2>&1 \
        || note "python-qpid-proton could not be built, which takes a C compiler: the octets of AMQP and their tests are left out."
}

ensure_browser() {  # for the tests of the audit page, which are skipped without
    command -v chromium >/dev/null || command -v google-chrome >/dev/null && return 0
    if [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then
        note "installing Chromium"
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y \
            --no-install-recommends chromium fonts-dejavu-core; } >"$log" 2>&1 && return 0
    fi
    note "there is no Chromium: the tests that open the audit page are left out."
}

prepare() {
    local stamp=$root/.venv/setup.stamp
    ensure_java
    if [ "$(cat "$stamp" 2>/dev/null)" != "$(stamp_now)" ]; then
        rm -f "$stamp"
        install
        ensure_browser
        stamp_now >"$stamp"
    fi
    # Looks for Delta's jars and the class archive, and starts Spark only for what is not there yet.
    (cd "$root" && .venv/bin/txnqueue setup) >"$log" 2>&1 \
        || { tail -n 20 "$log" >&2; stop "Delta's jars and the class archive could not be prepared; all of the output is in $log."; }
}

# One setup at a time, by a lock on this file; without flock (macOS) the user takes care.
mkdir -p "$root/.venv"
exec 9<"$root/jobs/setup.sh"
if command -v flock >/dev/null; then flock 9; fi
started=$SECONDS
prepare
exec 9<&-
note "ready after $((SECONDS - started)) s"
