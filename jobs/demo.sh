#!/usr/bin/env bash
# Runs the demonstration on real flights: bash jobs/demo.sh [options of jobs/flights_demo.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash jobs/setup.sh
exec .venv/bin/python jobs/flights_demo.py "$@"
