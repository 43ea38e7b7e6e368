"""Where the rows of a send lie, as Delta's log says: believed only if everything agrees."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txnqueue.core.model import Range
from txnqueue.errors import StoreCorrupt
from txnqueue.storage.journal.tables import TableNames
from txnqueue.storage.payload import OFFSETS_PER_TASK, Run, Send
from txnqueue.storage.payload.commits import StagedCommit, StagedFile, find_commit
from txnqueue.storage.payload.frame_arrangement import spread_runs
from txnqueue.storage.payload.writes import check_complete

SEND = Send("q-1", 3, "send", None, 1, None)  # type: ignore[arg-type]
TASK = OFFSETS_PER_TASK
Actions = list[dict[str, Any]]


def stats(rows: int, first: int, last: int) -> dict[str, Any]:
    return {
        "numRecords": rows,
        "minValues": {"send_id": "send", "send_offset": first},
        "maxValues": {"send_id": "send", "send_offset": last},
    }


def actions(*files: tuple[int, int, int]) -> Actions:
    said = {"txnqueue": "1", "operation": "stage", "send_id": "send"}
    metrics = {"numOutputRows": str(sum(rows for rows, _, _ in files))}
    info = {"userMetadata": json.dumps(said), "operationMetrics": metrics}
    adds = [
        {"add": {"partitionValues": {"slice": "3"}, "stats": json.dumps(stats(*file))}}
        for file in files
    ]
    return [{"commitInfo": info}, *adds]


def found_in(root: Path, written: Actions, version: str | None = "7") -> StagedCommit | None:
    log = root / "payload" / "q-1" / "_delta_log"
    log.mkdir(parents=True)
    lines = "\n".join(map(json.dumps, written))
    (log / f"{7:020}.json").write_text(lines + "\n", encoding="utf-8")
    nobody: Any = None  # this disk is read without Spark
    return find_commit(SEND, version, nobody, TableNames(str(root), by_path=True))


@pytest.mark.parametrize(
    ("files", "spans"),
    [
        ([], []),
        ([(3, 0, 2)], [(0, 2)]),
        ([(1, TASK, TASK), (3, 0, 2)], [(0, 2), (TASK, TASK)]),
        ([(2, 3, 4), (3, 0, 2)], [(0, 4)]),  # of one task: the user cuts files short
    ],
    ids=["nothing", "one file", "two tasks", "two files of a task"],
)
def test_the_ranges_of_a_send_are_read_from_its_commit(
    tmp_path: Path, files: list[tuple[int, int, int]], spans: list[Range]
) -> None:
    found = found_in(tmp_path, actions(*files))
    assert found is not None
    assert (found.version, found.spans) == (7, spans)
    runs = spread_runs(SEND, spans)
    assert [run.range for run in runs] == spans
    check_complete(runs, found.rows)


@pytest.mark.parametrize(
    "file",
    [
        StagedFile(3, 0, 3),
        StagedFile(3, 0, 1),
        StagedFile(2, TASK - 1, TASK),
    ],
    ids=["an offset is missing", "an offset stands twice", "two tasks in one file"],
)
def test_files_with_other_offsets_than_expected_are_read_themselves(file: StagedFile) -> None:
    assert StagedCommit(0, file.rows, (file,)).spans is None


@pytest.mark.parametrize(
    "files",
    [
        (StagedFile(3, 0, 2), StagedFile(3, 0, 2)),  # as if two attempts of a task had both ended
        (StagedFile(3, 0, 2), StagedFile(2, 4, 5)),
        (StagedFile(3, 0, 2), StagedFile(2, 2, 3)),
    ],
    ids=["twice", "with a gap", "overlapping"],
)
def test_files_of_a_task_that_do_not_follow_each_other_are_read_themselves(
    files: tuple[StagedFile, ...],
) -> None:
    assert StagedCommit(0, sum(file.rows for file in files), files).spans is None


def test_fewer_rows_than_the_tasks_have_written_are_not_believed() -> None:
    files = (StagedFile(3, 0, 2),)
    assert StagedCommit(0, 3, files).spans == [(0, 2)]
    assert StagedCommit(0, 4, files).spans is None
    with pytest.raises(StoreCorrupt, match="4 rows of a send were written, but 3 are"):
        check_complete([Run(0, 0, 3)], 4)


def without_stats(found: Actions) -> None:
    del found[1]["add"]["stats"]


def without_the_offset(found: Actions) -> None:
    said = json.loads(found[1]["add"]["stats"])
    del said["minValues"]["send_offset"]
    found[1]["add"]["stats"] = json.dumps(said)


def with_text(found: Actions) -> None:
    said = json.loads(found[1]["add"]["stats"])
    said["maxValues"]["send_offset"] = "2"
    found[1]["add"]["stats"] = json.dumps(said)


def with_deleted_rows(found: Actions) -> None:
    found[1]["add"]["deletionVector"] = {"cardinality": 1}


def in_another_slice(found: Actions) -> None:
    found[1]["add"]["partitionValues"] = {"slice": "4"}


@pytest.mark.parametrize(
    "change", [without_stats, without_the_offset, with_text, with_deleted_rows, in_another_slice]
)
def test_without_sound_statistics_only_the_number_of_rows_is_known(
    tmp_path: Path, change: Callable[[Actions], None]
) -> None:
    written = actions((3, 0, 2))
    change(written)
    found = found_in(tmp_path, written)
    assert found is not None
    assert (found.rows, found.spans) == (3, None)


def of_somebody_else(found: Actions) -> None:
    said = {"operation": "stage", "send_id": "another"}
    found[0]["commitInfo"]["userMetadata"] = json.dumps(said)


def of_a_user(found: Actions) -> None:
    found[0]["commitInfo"]["userMetadata"] = "what I do"


def without_any_word(found: Actions) -> None:
    del found[0]["commitInfo"]["userMetadata"]


def without_metrics(found: Actions) -> None:
    del found[0]["commitInfo"]["operationMetrics"]


def that_removes(found: Actions) -> None:
    found.append({"remove": {"path": "x"}})


def without_itself(found: Actions) -> None:
    del found[0]


@pytest.mark.parametrize(
    "change",
    [
        of_somebody_else,
        of_a_user,
        without_any_word,
        without_metrics,
        that_removes,
        without_itself,
    ],
)
def test_another_commit_is_not_taken_for_the_sends(
    tmp_path: Path, change: Callable[[Actions], None]
) -> None:
    written = actions((3, 0, 2))
    assert found_in(tmp_path / "as it is", copy.deepcopy(written)) is not None
    change(written)
    assert found_in(tmp_path / "changed", written) is None


@pytest.mark.parametrize("version", [None, "no number"])
def test_a_commit_that_the_session_does_not_know_is_not_found(
    tmp_path: Path, version: str | None
) -> None:
    assert found_in(tmp_path, actions((3, 0, 2)), version) is None


@pytest.mark.parametrize("version", ["8", "5", "4"])
def test_a_commit_is_found_though_another_thread_committed_since_to_another_table(
    tmp_path: Path, version: str
) -> None:
    """The session says that one's version, which may be there as well."""
    log = tmp_path / "payload" / "q-1" / "_delta_log"
    log.mkdir(parents=True)
    others: Any = actions((5, 0, 4))
    others[0]["commitInfo"]["userMetadata"] = json.dumps({"operation": "stage", "send_id": "no"})
    for number, written in enumerate([others] * 5 + [actions((3, 0, 2))] + [others] * 2):
        lines = "\n".join(map(json.dumps, written))
        (log / f"{number:020}.json").write_text(lines + "\n", encoding="utf-8")
    nobody: Any = None
    found = find_commit(SEND, version, nobody, TableNames(str(tmp_path), by_path=True))
    assert found is not None
    assert (found.version, found.spans) == (5, [(0, 2)])
