"""Runs kinds for a while, or until they are stopped, and writes the page of what they found."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.reliability import lists, longrun, page
from tests.reliability.kinds import KINDS
from tests.reliability.session import Session


def main(arguments: list[str] | None = None) -> int:
    """Run the kinds that are named, or all."""
    parser = argparse.ArgumentParser(prog="tests/reliability.sh", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"of: {', '.join(KINDS)}")
    parser.add_argument("--minutes", type=float, default=60, help="for all kinds together")
    parser.add_argument("--again", action="store_true", help="only do again what has failed")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    looks = "look which lists have changed since their last run, and write the page anew"
    parser.add_argument("--lists", action="store_true", help=looks)
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.kinds if name not in KINDS]
    if unknown:
        parser.error(f"no such kind: {', '.join(unknown)}")
    only_page = chosen.page or chosen.lists
    names = [] if only_page else chosen.kinds or list(KINDS)
    if chosen.lists:
        logging.getLogger("txnqueue").setLevel(logging.CRITICAL)
        lists.look(KINDS.values(), longrun.now(), longrun.commit())
    failed = _again(names) if chosen.again else _run(names, chosen.minutes * 60)
    page.write()
    return 1 if failed else 0


def _run(names: list[str], seconds: float) -> bool:
    stop = longrun.Stop()
    logging.getLogger("txnqueue").setLevel(logging.CRITICAL)  # what is made to fail is logged
    session, failed = Session(), False
    try:
        for name in names:
            if stop.wanted:
                break
            found = longrun.run(KINDS[name], session, seconds / len(names), stop=stop)
            print(f"{name}: {found.n} in {found.seconds:.0f} s, {len(found.failures)} failed")
            for failure in found.failures:
                print(f"  {failure.number}: {failure.what}")
            failed = failed or bool(found.failures)
    finally:
        session.close()
    return failed


def _again(names: list[str]) -> bool:
    logging.getLogger("txnqueue").setLevel(logging.CRITICAL)
    session, failed = Session(), False
    try:
        for kind in map(KINDS.__getitem__, names):
            for one in [] if kind.found else longrun.run_again(kind, session):
                print(f"{kind.name} {one.number}: {one.n} done again, {len(one.failed)} failed")
                if one.found and not one.n:
                    print("  nothing could be done: it is not repeated")
                failed = failed or bool(one.failed)
    finally:
        session.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
