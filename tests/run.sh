#!/usr/bin/env bash
# Sets up what is missing, checks the sources, and runs the tests.
#
#   bash tests/run.sh                  all checks, then all tests
#   bash tests/run.sh --long           the same, with longer runs of the random and crash tests
#   bash tests/run.sh tests/core -k x  only pytest, with these arguments
#   bash tests/run.sh --long tests/x   only pytest, with longer runs
#
# Every stage runs even if an earlier one failed; the exit code is 1 if any did.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = --long ]; then
    export TXNQUEUE_LONG=1
    shift
fi
bash jobs/setup.sh

failed=()
stage() {
    local name=$1 started=$SECONDS result=ok
    shift
    "$@" || { result=FAILED; failed+=("$name"); }
    echo "== $name: $result, $((SECONDS - started)) s"
}

bin=.venv/bin
if [ $# -eq 0 ]; then
    stage "ruff check" "$bin/ruff" check --quiet .
    stage "ruff format" "$bin/ruff" format --quiet --check .
    stage "mypy" "$bin/mypy" --no-error-summary
    stage "import rules" "$bin/lint-imports"
fi
# Runs one part of the tests, whose line is "name: what pytest is called with", and shows all of
# what it says at its end, with the tests that cost most. A part that hangs is interrupted, and
# then says where it was. What it says goes to a file: a pipe would stay open, and be waited for,
# as long as any process that a test left behind.
part() {
    local name=${1%%: *} started=$SECONDS said result=ok pytest
    pytest="timeout --verbose --signal=ABRT --kill-after=60 $part_seconds .venv/bin/python -X faulthandler -m pytest"
    said=$(mktemp)
    echo "== pytest, $name: started"
    eval "$pytest -v -p no:cacheprovider --durations=30 ${1#*: }" >"$said" 2>&1 </dev/null || result=FAILED
    # Of the tests that passed only the number is shown.
    grep -vE '(PASSED|SKIPPED.*) +\[ *[0-9]+%\]$' "$said" || true
    rm -f "$said"
    printf '== pytest, %s: %s, %s s\n' "$name" "$result" "$((SECONDS - started))"
    [ "$result" = ok ]
}
part_seconds=2400
[ -z "${TXNQUEUE_LONG:-}" ] || part_seconds=86400
export part_seconds
export -f part

core="tests/conformance tests/delta/test_crash_on_delta.py tests/delta/test_conflicts.py"
core="$core tests/delta/test_cost.py tests/delta/test_maintenance.py tests/delta/test_two_drivers.py"
core="$core tests/delta/test_ranges.py tests/delta/test_commit_times.py"
core="$core tests/delta/test_storage_calls.py"
servers="tests/delta/test_s3.py tests/delta/test_connect.py tests/delta/test_connect_sessions.py"
pages="tests/reports tests/shell"
named="$core $servers"
elsewhere=$(find tests -mindepth 1 -maxdepth 1 -name '[a-z]*' -type d ! -name conformance \
    ! -name reports ! -name shell ! -name delta | sort | xargs)
# What takes longest begins first. Each part has one Java, which is slow at first.
parts="\
the rest on Delta: -m spark tests/delta ${named//tests\//--ignore=tests/}
the core on Delta, and all else on Spark: -m spark $core $elsewhere
in memory: -m 'not spark'
the reports, the demo, the notebooks and the pages: -m spark $pages
S3 and Connect: -m spark $servers"

if [ $# -gt 0 ]; then
    stage "pytest" "$bin/python" -m pytest "$@"
else
    # Three at a time, for the two cores of a small machine: each waits now and then.
    printf '%s' "$parts" | tr '\n' '\0' | xargs -0 -n 1 -P 3 bash -c 'part "$1"' part ||
        failed+=("pytest")
fi

if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}" >&2
    exit 1
fi
