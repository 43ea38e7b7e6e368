"""Kill driver processes that work on S3; whoever looks afterwards works there as well."""

from __future__ import annotations

import re
import subprocess
import sys

from tests import drivers
from tests.delta import test_two_drivers as two_drivers


def killed(settings: dict[str, str], root: str, seed: int, kills: int, sends: int) -> int:
    """Kill a producer and a consumer so often, and find everything once.

    It takes a process of its own, whose Java has what S3 needs.

    Returns:
        How many of them were still alive when they were killed.
    """
    process = drivers.start(
        "tests.delta.s3_kills", root, seed, kills, sends,
        stderr=subprocess.STDOUT, settings=settings,
    )  # fmt: skip
    said, _ = process.communicate()
    alive = re.search(r"^alive (\d+)$", said, re.MULTILINE)
    assert process.returncode == 0 and alive is not None, said[-3000:]
    return int(alive.group(1))


def main(root: str, seed: str, kills: str, sends: str) -> None:
    spark = drivers.session("auditor")
    alive = two_drivers.kill(spark, root, int(seed), int(kills), int(sends), attached=False)
    print("alive", alive)


if __name__ == "__main__":
    main(*sys.argv[1:])
