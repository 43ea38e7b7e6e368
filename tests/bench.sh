#!/usr/bin/env bash
# Measures what operations cost beside plain Delta, and beside queues that people write themselves.
#
#   bash tests/bench.sh                about 25 minutes; the machine should do nothing else
#   bash tests/bench.sh --minutes 8    fewer rounds
#   bash tests/bench.sh --only send    one group of cases, or the cases whose names begin so
#   bash tests/bench.sh --skip audit   all but one group, or such cases
#   bash tests/bench.sh --quick        one round of each, to see that it works
#   bash tests/bench.sh --full         also large stores, and how costs grow with them
#   bash tests/bench.sh --publish      writes figures, pictures and tables into docs/
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash jobs/setup.sh
exec .venv/bin/python -m tests.bench "$@"
