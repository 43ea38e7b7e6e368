#!/usr/bin/env bash
# Makes the jar of the log store for S3 from its source: the same source makes the same jar.
#
#   bash jobs/log_store.sh [FILE]   default: the one that the package has
#
# It needs the javac and the jar of a JDK 17, and what jobs/setup.sh installs.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
resources=$root/txnqueue/platform/resources
jar=${1:-$resources/txnqueue-log-store.jar}

libraries=$("$root/.venv/bin/python" - <<'END'
from pathlib import Path

import pyspark
from txnqueue.platform.local_spark import fetch_jars

hadoop = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
storage = (path for path in fetch_jars() if "delta-storage" in path.name)
print(":".join(map(str, (*hadoop, *storage))))
END
)
classes=$(mktemp -d)
trap 'rm -r "$classes"' EXIT
javac --release 17 -proc:none -g:none -nowarn -cp "$libraries" -d "$classes" \
    "$resources/ConditionalPutLogStore.java"
rm -f "$jar"
jar --create --file "$jar" --date 2026-01-01T00:00:00Z --no-manifest -C "$classes" txnqueue
