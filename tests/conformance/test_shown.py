"""What notebooks show of the objects that users hold."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any, get_args

import pytest
from pyspark.sql.types import StructType

import txnqueue
from txnqueue.core import markup
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import memory_manager

HOSTILE = "</table><script>alert(1)</script>\u202e<b onload='x'>&amp;"


class Elements(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.open.append(tag)
        assert all(name == "scope" for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "|"


def shown(one: Any) -> Elements:
    """Read what a notebook shows of an object."""
    found = Elements(one._repr_html_())
    assert found.names <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    return found


@pytest.fixture
def store() -> MemoryStore:
    """A store with hostile names in it."""
    store = MemoryStore()
    manager = memory_manager(store, name=HOSTILE)
    inner = StructType().add("c", "string")
    orders = manager.create_queue("orders", StructType().add("a", "long").add("b", inner), lanes=3)
    orders.send([{"a": n, "b": {"c": HOSTILE}} for n in range(7)])
    with manager.transaction(f"night {HOSTILE}") as tx:
        batch = orders.receive(2, transaction=tx)
        batch.reject(matching=batch.messages()[:1], reason=HOSTILE, transaction=tx)
    orders.receive(1)
    return store


def objects(manager: Any) -> dict[str, Any]:
    """One object of each kind that a notebook shows."""
    orders, history = manager.queue("orders"), manager.history
    snapshot = history.as_of()
    sold = manager.create_exchange("sold", "fanout", "a long")
    sent = orders.send([{"a": 1, "b": None}])
    made = [
        *(manager, orders, orders.info, orders.info.settings, orders.dead_letters(), sent),
        *(sent.receipt, manager.metrics(), history, snapshot, snapshot.queues(), history.verify()),
        *(history.report(), history.trace(orders.peek_messages()[0]["_message"]["id"])),
        *(snapshot.counts(), snapshot.messages("orders"), manager.recover(), manager.maintain()),
        *(orders.drain(lambda batch, tx: None, max_batches=1), manager.outcome("x"), sold.info),
        *(sold.publish([{"a": 1}]), sold.drop()),
    ]
    return {type(one).__name__ + str(number): one for number, one in enumerate(made)}


def test_everything_is_shown_as_tables_whatever_text_is_in_it(store: MemoryStore) -> None:
    found = {name: shown(one) for name, one in objects(memory_manager(store, name=HOSTILE)).items()}
    assert all("table" in elements.names for elements in found.values())
    text = "".join(elements.text for elements in found.values())
    assert "</table><script>alert(1)</script>\\u202e" in text
    assert "\u202e" not in text


def test_a_manager_shows_its_queues_with_counts(store: MemoryStore) -> None:
    text = shown(memory_manager(store)).text
    assert "orders|4|1|0|1|" in text and "orders.dead|1|0|0|0|" in text


def test_a_queue_shows_its_depth_its_dead_letters_and_its_columns(store: MemoryStore) -> None:
    text = shown(memory_manager(store).queue("orders")).text
    for part in (
        "available|4|",
        "in flight|1|",
        "dead letters|1|",
        "lanes|3|",
        "a|long|",
        "b|struct|",
    ):
        assert part in text


def test_a_result_shows_its_fields(store: MemoryStore) -> None:
    result = memory_manager(store).queue("orders").drain(lambda batch, tx: None, run_id="night")
    assert "run_id|night|" in shown(result).text and "messages|4|" in shown(result).text


def test_a_result_in_a_result_is_shown_field_by_field_and_nothing_private(
    store: MemoryStore,
) -> None:
    manager = memory_manager(store)
    sent = manager.queue("orders").send([{"a": 1, "b": None}])
    assert sent.receipt is not None
    text = shown(sent).text
    assert f"receipt.commit_seq|{sent.receipt.commit_seq}|" in text and "Receipt(" not in text
    published = shown(manager.create_exchange("news", "fanout", "a long").publish([{"a": 1}])).text
    assert "unroutable|1|" in published and "_schema" not in published
    tx = manager.transaction("transfer 17")
    manager.queue("orders").send([{"a": 1, "b": None}], transaction=tx)
    tx.prepare()
    assert "prepared|transfer 17|" in shown(manager.recover()).text
    assert "()" not in shown(manager.recover()).text
    assert "status|prepared|" in shown(manager.outcome("transfer 17")).text


def test_of_many_rows_the_first_are_shown(store: MemoryStore) -> None:
    manager = memory_manager(store)
    for number in range(30):
        manager.create_queue(f"q{number:02}", "a long", dead_letter=False)
    text = shown(manager.history.as_of().queues()).text
    assert "q02" in text and "q29" not in text and "and 12 more" in text


def test_a_long_value_is_cut() -> None:
    page = markup.table("t", ("a",), [("x" * 5_000,)])
    assert len(page) < 500 and "…" in page


class Steps:
    """The calls of a store that were made."""

    def __init__(self, store: MemoryStore) -> None:
        self.made: list[str] = []
        self.store = store
        for part in (store.journal, store.payload, store.tables):
            part.step = self.made.append

    def of(self, show: Any) -> list[str]:
        """List what is called when something is shown."""
        self.made.clear()
        show()
        return list(self.made)


def test_a_repr_asks_the_store_nothing_and_a_table_reads_no_payload(store: MemoryStore) -> None:
    made = objects(memory_manager(store))
    steps = Steps(store)
    for name, one in made.items():
        assert steps.of(lambda one=one: repr(one)) == [], name
        reading = steps.of(one._repr_html_)
        assert "scan" not in reading, name
        assert not [step for step in reading if "land" in step or "append" in step], name


def test_a_history_shows_the_entries_of_the_last_ten_versions() -> None:
    manager = memory_manager()
    orders = manager.create_queue("orders", StructType().add("a", "long"))
    orders.send([{"a": 1}])
    batch = orders.receive()
    for _ in range(12):
        batch.extend_lease(60)  # one entry in one version
    assert shown(manager.history).text.count("lease_extended|") == 10


def test_what_cannot_be_read_is_said_instead_of_raised(store: MemoryStore) -> None:
    manager = memory_manager(store)
    held = [manager, manager.queue("orders"), manager.history, manager.history.as_of()]

    def fail(step: str) -> None:
        raise OSError(f"the disk is gone {HOSTILE}")

    store.journal.step = fail
    for one in held:
        text = shown(one).text
        assert "OSError: the disk is gone" in text and repr(one) in text


def test_a_store_that_is_not_there_is_said(tmp_path: Any) -> None:
    text = shown(memory_manager()).text
    assert "StoreNotFound" in text and "QueueManager of memory" in text


def test_every_result_of_a_call_is_shown() -> None:
    plain = {
        "Auxiliary",
        "Exchange",
        "ExchangeReader",
        "Heartbeat",
        "QueueDataSource",
        "Rollback",
        "Stream",
        "TableChanges",
        "Transaction",
    }
    kinds = {"AuditFigures", "Message", "NotGiven", "Status"}
    classes = {
        name
        for name in txnqueue.__all__
        if isinstance(found := getattr(txnqueue, name), type)
        and not get_args(found)  # an alias of a type of functions is a class in Python 3.10
        and found.__module__ != "txnqueue.types"
    }
    without = {name for name in classes if not hasattr(getattr(txnqueue, name), "_repr_html_")}
    assert without == (plain | kinds) & classes


def test_what_cannot_be_read_is_said_and_not_raised() -> None:
    @markup.never_raising
    def show(one: object) -> str:
        raise ValueError("<lost>")

    assert "ValueError: &lt;lost&gt;" in show(object())
    assert markup.never_raising(lambda one: f"<p>{one}</p>")(7) == "<p>7</p>"
