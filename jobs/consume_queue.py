"""Drain a queue as a scheduled Spark job; the options are those of ``txnqueue consume``.

    spark-submit --py-files txnqueue-*.whl jobs/consume_queue.py orders \\
        --root hdfs:///lake/messaging --run-id "${RUN_ID:?}" --handler my_job:handle

What a platform's Spark must have is in ``conf/spark-defaults.conf``. The exit codes are for
schedulers: ``txnqueue consume --help`` names them.
"""

from __future__ import annotations

import sys


def main() -> None:
    from txnqueue.cli.main import main as command_line

    sys.argv[1:1] = ["consume"]
    command_line()


if __name__ == "__main__":
    main()
