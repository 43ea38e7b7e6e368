#!/usr/bin/env bash
# Makes the jar of the log stores from their sources: the same sources make the same jar.
#
#   bash jobs/log_store.sh [FILE]   default: the one that the package has
#
# It needs the javac and the jar of a JDK 17, and what jobs/setup.sh installs.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
resources=$root/txnqueue/platform/resources
jar=${1:-$resources/txnqueue-log-store.jar}

libraries=$(cd "$root" && "$root/.venv/bin/python" - <<'END'
from pathlib import Path

import pyspark
from tests.delta.s3 import client_jars
from txnqueue.platform.local_spark import fetch_jars

spark = Path(pyspark.__file__).parent / "jars"
storage = (path for path in fetch_jars() if "delta-storage" in path.name)
of_spark = (jar for name in ("hadoop-client-api", "slf4j-api") for jar in spark.glob(f"{name}-*.jar"))
print(":".join(map(str, (*of_spark, *storage, *client_jars()))))
END
)
classes=$(mktemp -d)
trap 'rm -r "$classes"' EXIT
javac --release 17 -proc:none -g:none -nowarn -cp "$libraries" -d "$classes" \
    "$resources"/*LogStore.java
rm -f "$jar"
jar --create --file "$jar" --date 2026-01-01T00:00:00Z --no-manifest -C "$classes" txnqueue
