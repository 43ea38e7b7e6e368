"""A private PostgreSQL on localhost, for the tests of databases that prepare."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def values(connection: Any, table: str = "ledger") -> list[int]:
    cursor = connection.cursor()
    cursor.execute(f"SELECT n FROM {table} ORDER BY n")
    found = [row[0] for row in cursor.fetchall()]
    connection.rollback()
    return found


def insert(connection: Any, n: int, table: str = "ledger") -> None:
    connection.cursor().execute(f"INSERT INTO {table} VALUES ({n})")


def _postgres_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a private PostgreSQL on localhost, and tell how to connect to it."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install psycopg[binary]")
    programs = _postgres_programs()
    if programs is None:
        pytest.skip("no PostgreSQL on this machine: apt-get install postgresql")
    folder = tmp_path_factory.mktemp("postgres")
    user: dict[str, Any] = {}
    if os.getuid() == 0:  # PostgreSQL does not run as root
        user = {"user": "nobody", "group": "nogroup"}
        folder = Path(tempfile.mkdtemp(prefix="txnqueue-postgres-", dir="/tmp"))
        shutil.chown(folder, "nobody", "nogroup")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"

    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), "-D", str(data), *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)

    run("initdb", "-U", "postgres", "-A", "trust", "--no-sync")
    options = f"-p {port} -k {folder} -h 127.0.0.1 -c max_prepared_transactions=20 -c fsync=off"
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    finally:
        run("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: str) -> str:
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as connection:
        for xid in connection.tpc_recover():  # what a test that failed left behind
            connection.tpc_rollback(xid)
        connection.execute("DROP TABLE IF EXISTS ledger, txnqueue_decisions")
        connection.execute("CREATE TABLE ledger (n integer CHECK (n < 100))")
    return postgres


def connect(database: str) -> Any:
    import psycopg

    return psycopg.connect(database)
