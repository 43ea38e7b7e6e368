"""Kill driver processes that work on S3; whoever looks afterwards works there as well."""

from __future__ import annotations

import os
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
    done = subprocess.run(
        [sys.executable, "-m", "tests.delta.s3_kills", root, str(seed), str(kills), str(sends)],
        cwd=drivers.FOLDER,
        env={**os.environ, **drivers.with_settings(settings)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return int(done.stdout.split()[-1])


def main(root: str, seed: str, kills: str, sends: str) -> None:
    spark = drivers.session("auditor")
    alive = two_drivers.kill(spark, root, int(seed), int(kills), int(sends), attached=False)
    print("alive", alive)


if __name__ == "__main__":
    main(*sys.argv[1:])
