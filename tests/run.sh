#!/usr/bin/env bash
# Sets up what is missing, checks the sources, and runs the tests.
#
#   bash tests/run.sh                  all checks, then all tests
#   bash tests/run.sh --long           the same, with longer runs of the random and crash tests
#   bash tests/run.sh tests/unit -k x  only pytest, with these arguments
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
if [ $# -gt 0 ]; then
    stage "pytest" "$bin/python" -m pytest "$@"
else
    # Three at a time, for the two cores of a small machine: each waits now and then. Only the
    # first has Java processes beside its own, and only after what needs no Spark at all.
    core="tests/conformance tests/delta/test_crash_on_delta.py tests/delta/test_conflicts.py"
    core="$core tests/delta/test_cost.py"
    logs=$(mktemp -d)
    pytest() {
        "$bin/python" -m pytest -q -p no:cacheprovider "$@"
    }
    # shellcheck disable=SC2086
    pytest -m "spark and not processes" $core >"$logs/core" 2>&1 &
    core_pid=$!
    pytest -m "spark and not processes" ${core//tests/--ignore=tests} >"$logs/spark" 2>&1 &
    spark_pid=$!
    stage "pytest, in memory" pytest -m "not spark"
    stage "pytest, several drivers" pytest -m processes
    stage "pytest, the core on Delta" wait "$core_pid"
    cat "$logs/core"
    stage "pytest, all else on Spark" wait "$spark_pid"
    cat "$logs/spark"
    rm -rf "$logs"
fi

if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}" >&2
    exit 1
fi
