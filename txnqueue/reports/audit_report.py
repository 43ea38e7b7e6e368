"""The report for an auditor: the figures of a store between two moments, and their page."""

from __future__ import annotations

import datetime
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from txnqueue.client.archive import Past
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.instants import instant
from txnqueue.core.markup import records
from txnqueue.core.model import Entry
from txnqueue.core.settings import QueueInfo, shown
from txnqueue.core.state import catalog
from txnqueue.core.state.topology import Topology
from txnqueue.errors import InvalidInput, TxnQueueError
from txnqueue.messages.parts import part_of
from txnqueue.reports.audit.depths import Depths
from txnqueue.reports.audit.figures import (
    AuditFigures,
    DeadLetterCause,
    Moment,
    QueueDifference,
)
from txnqueue.reports.audit.outside import FollowedChanges, Heuristics, by_table
from txnqueue.reports.audit.work import Attempts, Causes, Events, Runs
from txnqueue.reports.causes import SAMPLES_MAX, CountedCause, counted, standing
from txnqueue.reports.report import plain
from txnqueue.reports.verification import VerificationResult, verify
from txnqueue.storage.journal import Order
from txnqueue.storage.payload import messages_of


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What happened in a store between two moments; get it from ``history.report``.

    Attributes:
        root: The store's address.
        made_at: When the report was made.
        made_by: Who made it.
        payload: Whether it shows payload.
        figures: The figures.
        proof: The result of ``history.verify`` when the report was made; None if not requested.
    """

    root: str
    made_at: datetime.datetime
    made_by: str
    payload: bool
    figures: AuditFigures
    proof: VerificationResult | None = None

    def html(self) -> str:
        """Return the report as one HTML page, which needs no network and no other file.

        Raises:
            PlatformMissing: jinja2 is not installed: ``pip install 'txnqueue[report]'``.
        """
        from txnqueue.reports.audit.page import page_of

        return page_of(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the HTML page to a file, as a whole or not at all.

        Args:
            path: The file; an existing one is replaced, and stays as it is if that fails.

        Returns:
            The file.

        Raises:
            InvalidInput: The file cannot be written.
            PlatformMissing: jinja2 is not installed: ``pip install 'txnqueue[report]'``.
        """
        page = self.html().encode()
        try:
            file = Path(path)
            _write(file, page)
        except (OSError, TypeError, ValueError) as error:
            raise InvalidInput(f"path={shown(path)}: {error}.", name="path") from error
        return file

    def json(self) -> str:
        """Return the report as a JSON object: instants as ISO 8601, binary values as base64."""
        import json

        return json.dumps(plain(asdict(self)), ensure_ascii=False)

    def _repr_html_(self) -> str:
        """Show each queue's differences in a notebook; nothing is read."""
        rows = [asdict(one) for one in self.figures.differences]
        last = self.figures.last.commit_seq
        caption = f"After commit {self.figures.first.commit_seq} up to {last}; save(path) the page"
        return records(caption, rows, [field.name for field in fields(QueueDifference)])

    def __repr__(self) -> str:
        """Show the root and the commits."""
        first, last = self.figures.first.commit_seq, self.figures.last.commit_seq
        return f"<AuditReport of {self.root} after commit {first} up to {last}>"


def _write(file: Path, content: bytes) -> None:
    """Write a file beside the one that it replaces, which nothing can leave half written then."""
    there = Path(os.path.realpath(file))  # what a link names, and not the link
    if there.exists() and not there.is_file():  # a pipe, or a device
        there.write_bytes(content)
        return
    beside = there.with_name(f".{secrets.token_hex(8)}.part")
    try:
        beside.write_bytes(content)
        if there.exists():
            shutil.copymode(there, beside)
        beside.replace(there)
    finally:
        beside.unlink(missing_ok=True)


def audit(
    client: Client,
    first: tuple[Past, int | None] | None,
    last: tuple[Past, int | None],
    *,
    payload: bool,
    proof: bool,
) -> AuditReport:
    """Make a report, by one reading of the entries.

    Args:
        client: The client of the store.
        first: The moment to begin after, as ``History`` finds it; None: the history's beginning.
        last: The moment to end with.
        payload: Whether the rows of dead letters are shown.
        proof: Whether the store is verified.
    """
    figures = _figures(client, first, last, payload=payload)
    return AuditReport(
        root=client.store.root,
        made_at=instant(client.runtime.now_ms()),
        made_by=client.runtime.actor,
        payload=payload,
        figures=figures,
        proof=verify(client) if proof else None,
    )


def _figures(
    client: Client,
    first: tuple[Past, int | None] | None,
    last: tuple[Past, int | None],
    *,
    payload: bool,
) -> AuditFigures:
    """Read the figures, all as of one beginning of the history.

    Raises:
        HistoryRemoved: Entries after the first moment were removed during the read.
    """
    past, _ = last
    if first is not None:
        past.check_known(first[0].upto)
    return past.at_one_beginning(lambda: _read(client, first, last, payload=payload))


def _read(
    client: Client,
    first: tuple[Past, int | None] | None,
    last: tuple[Past, int | None],
    *,
    payload: bool,
) -> AuditFigures:
    past, at_ms = last
    newest = past.newest()
    beginning = model.commit_seq(past.beginning) if past.beginning >= 0 else -1
    after = beginning - 1 if beginning >= 0 else -1
    begins_ms = 0
    if first is not None:
        begins = first[0].newest()
        after = begins.commit_seq
        begins_ms = max(0, begins.recorded_at_ms) if first[1] is None else first[1]
    told = past.catalog()
    ever = catalog.every_queue(told)
    names = {queue_id: info.name for queue_id, info in ever.items()}
    depths = Depths(ever.values(), after, newest.commit_seq, beginning)
    runs, causes, events = Runs(names), Causes(names), Events(names)
    attempts = Attempts(after, past.beginning)
    changes, heuristics = FollowedChanges(after), Heuristics(after)
    for entry in past.stream(Order.COMMIT):
        inside = entry.commit_seq > after
        depths.see(entry)
        attempts.see(entry)
        changes.see(entry)
        heuristics.see(entry)
        events.see(entry, inside=inside)
        if inside:
            runs.see(entry)
            causes.see(entry)
    depths.finish(max(0, newest.recorded_at_ms) if at_ms is None else at_ms)
    found, left_out = events.lines()
    ended = changes.lines()
    return AuditFigures(
        first=Moment(after, None if first is None else instant(begins_ms)),
        last=Moment(newest.commit_seq, instant(depths.at_ms)),
        beginning=beginning,
        differences=tuple(sorted(depths.differences(), key=lambda one: one.queue)),
        depths=tuple(depths.points),
        depth_every_versions=depths.every_versions,
        lanes=tuple(depths.lanes()),
        runs=tuple(runs.lines()),
        attempts=tuple(attempts.lines()),
        events=found,
        events_left_out=left_out,
        causes=tuple(causes.lines()),
        dead_letters=tuple(_dead_letters(client, depths, _getting_dead(told), payload=payload)),
        changes=ended,
        tables=tuple(by_table(ended)),
        heuristics=heuristics.lines(),
    )


def _getting_dead(told: list[Entry]) -> set[str | None]:
    """Find the queues that ever took dead letters, including those of dropped queues."""
    queues, exchanges = catalog.every_queue(told).values(), Topology.of(told).ever.values()
    return {info.dead_letter_id for info in queues} | {info.dead_letter_id for info in exchanges}


def _dead_letters(
    client: Client, depths: Depths, getting: Collection[str | None], *, payload: bool
) -> Iterator[DeadLetterCause]:
    """Yield the dead letters of every dead-letter queue, by cause."""
    for queue_id, (info, tally) in depths.held().items():
        if queue_id in getting:
            for cause in counted(standing(tally.fold)):
                rows = tuple(_rows(client, info, cause)) if payload else ()
                yield DeadLetterCause(info.name, cause.row, tuple(_ids(cause)), rows)


def _ids(cause: CountedCause) -> Iterator[str]:
    """Yield the ids of a few messages of a cause."""
    left = SAMPLES_MAX
    for one in cause.samples:
        for first, end in one.ranges:
            for offset in range(first, min(end + 1, first + left)):
                yield f"{one.position.send_id}:{offset}"
                left -= 1


def _rows(client: Client, info: QueueInfo, cause: CountedCause) -> list[Mapping[str, Any]]:
    """Read the payload of a few messages of a cause, as far as it still exists."""
    parts, left = [], SAMPLES_MAX
    for one in cause.samples:
        for first, end in one.ranges:
            if left > 0:
                few = (first, min(end, first + left - 1))
                left -= few[1] - few[0] + 1
                parts.append(part_of(one.position, (few,), info.name, one.lane, one.delivery_count))
    payload = client.store.payload
    try:
        table = payload.table(payload.schema(info.schema), parts)
    except TxnQueueError as error:
        return [{"(not readable)": str(error)}]
    return list(messages_of(table))
