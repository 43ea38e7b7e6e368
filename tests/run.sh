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
    # Two at a time: what one store on Delta answers, and everything else beside it.
    core="tests/conformance tests/delta/test_crash_on_delta.py tests/delta/test_conflicts.py"
    core="$core tests/delta/test_cost.py"
    beside=$(mktemp)
    everything_else() {
        local result=0
        "$bin/python" -m pytest -q -m "not spark" -p no:cacheprovider || result=1
        "$bin/python" -m pytest -q -m spark -p no:cacheprovider ${core//tests/--ignore=tests} \
            || result=1
        return $result
    }
    everything_else >"$beside" 2>&1 &
    pid=$!
    # shellcheck disable=SC2086
    stage "pytest, the core on Delta" "$bin/python" -m pytest -q -m spark $core
    stage "pytest, everything else" wait "$pid"
    cat "$beside"
    rm -f "$beside"
fi

if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}" >&2
    exit 1
fi
