#!/usr/bin/env bash
# Runs what shows how reliable the library is, for as long as it may, and writes what was found.
#
#   bash tests/reliability.sh                          all kinds, an hour in all
#   bash tests/reliability.sh simulator --minutes 480  one kind, for a night
#   bash tests/reliability.sh upgrade --again          what has failed in it, with the code of now
#   bash tests/reliability.sh --page                   only write docs/reliability.md anew
#   bash tests/reliability.sh --lists                  and look which lists have changed; a minute
#   bash tests/reliability.sh --help                   the kinds
#
# It can be stopped at any time, by Ctrl-C or by force: each number is written to its kind's file in
# docs/reliability/ as soon as it is done, and the next run goes on there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash jobs/setup.sh
# Python's own allocator keeps a part of its highest use; the system's, which is slower, gives it
# back, so that its memory shows what is in use, once threads keep nothing of their own.
case " $* " in *" soak "*)
    export PYTHONMALLOC=malloc MALLOC_ARENA_MAX=2 GLIBC_TUNABLES=glibc.malloc.tcache_count=0 ;;
esac
exec .venv/bin/python -m tests.reliability "$@"
