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
    # Spark's tests wait for the JVM most of the time: the others run beside them.
    others=$(mktemp)
    "$bin/python" -m pytest -q -m "not spark" -p no:cacheprovider >"$others" 2>&1 &
    beside=$!
    stage "pytest, with Spark" "$bin/python" -m pytest -m spark
    stage "pytest, without Spark" wait "$beside"
    cat "$others"
    rm -f "$others"
fi

if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}" >&2
    exit 1
fi
