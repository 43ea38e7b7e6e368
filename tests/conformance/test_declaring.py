"""Declared queues: created and altered, and never dropped unless told so; both stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.conftest import World, in_memory, on_delta_when_long, rows
from txnqueue.admin.declarations import DeclarationResult
from txnqueue.errors import InvalidInput, QueueInUse, QueueNotFound, SchemaMismatch

EXAMPLE = Path(__file__).resolve().parents[2] / "conf" / "queues.yaml"


def declared(world: World, **about: Any) -> dict[str, Any]:
    return {"queues": {world.name("orders"): {"schema": "n long, key string", **about}}}


@on_delta_when_long
def test_queues_are_made_as_they_are_declared(world: World) -> None:
    manager, name = world.manager(), world.name("orders")
    first = declared(world, lanes=2, lease_seconds=60)
    wanted = [DeclarationResult("create", name)]
    world.queue("other")
    assert manager.declare(first, dry_run=True) == wanted
    with pytest.raises(QueueNotFound):
        manager.queue(name)
    assert manager.declare(first) == wanted
    assert manager.declare(first) == [] == world.manager("b").declare(first, dry_run=True)
    manager.queue(name).send(rows(1))

    more = declared(world, lease_seconds=90)
    more["queues"][name]["schema"] += ", note string"
    changes = {"lease_seconds": (60, 90), "column note": (None, "string")}
    assert manager.declare(more, dry_run=True) == [DeclarationResult("alter", name, changes)]
    assert manager.declare(more) == [DeclarationResult("alter", name, changes)]
    assert manager.declare(more) == manager.declare(first | {"queues": {}}) == []
    assert manager.queue(name).info.settings.lanes == 2, "what is left out is left alone"
    assert manager.queue(name).schema.names == ["n", "key", "note"]

    gone = {"drop": [name, world.name("never")]}
    assert manager.declare(gone) == []
    assert manager.declare(gone, drop=True) == [DeclarationResult("drop", name)]
    assert manager.declare(gone, drop=True) == []
    assert world.name("other") in manager.list_queues()


@in_memory
def test_a_wrong_declaration_changes_nothing_and_is_told_in_one_error(world: World) -> None:
    manager, name = world.manager(), world.name("orders")
    manager.declare(declared(world, lanes=2))
    fine = {"schema": "n long"}
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("did you mean 'queues'", {"queus": {}}),
        ("did you mean 'lease_seconds'", {"queues": {"b": {**fine, "laese_seconds": 5}}}),
        ("schema is missing", {"queues": {"b": {"lanes": 2}}}),
        ("give a mapping", {"queues": ["b"]}),
        ("give a mapping", {"queues": {"b": "n long"}}),
        ("deliveries_max", {"queues": {"b": {**fine, "deliveries_max": 0}}}),
        ("ordered='yes'", {"queues": {"b": {**fine, "ordered": "yes"}}}),
        ("list of queue names", {"drop": "b"}),
        ("both declared and listed", {"queues": {"b": fine}, "drop": ["b"]}),
        ("cannot be the name", {"queues": {"1 b": fine}}),
        (
            f"queue '{name}': lanes=4",
            {"queues": {"b": fine, name: {"schema": "n long", "lanes": 4}}},
        ),
        ("not a schema|not a plain column", {"queues": {"b": {"schema": "n nothing"}}}),
    ]
    for told, declaration in wrong:
        with pytest.raises(InvalidInput, match=told):
            manager.declare(declaration)
    with pytest.raises(SchemaMismatch, match="key"):
        manager.declare({"queues": {"b": fine, name: {"schema": "n long, key long"}}})
    assert manager.list_queues() == [name, f"{name}.dead"]


@in_memory
@pytest.mark.parametrize(
    "about",
    [
        {"schema": "n long, n long"},
        {"group_by": "zz"},
        {"lanes": -1},
        {"lease_seconds": float("nan")},
        {"lain": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("there", [True, False])
def test_an_error_of_a_declaration_names_its_queue(
    world: World, about: dict[str, Any], *, there: bool
) -> None:
    manager, name = world.manager(), world.name("orders")
    if there:
        manager.declare(declared(world))
    with pytest.raises(InvalidInput, match=f"^queue '{name}': ") as caught:
        manager.declare(declared(world, **about))
    assert caught.value.message == str(caught.value)


@in_memory
def test_the_example_can_be_applied(world: World) -> None:
    manager = world.manager()
    example = yaml.safe_load(EXAMPLE.read_text())
    assert [step.action for step in manager.declare(example)] == ["create", "create"]
    assert manager.queue("orders").info.settings.lanes == 4
    assert manager.declare(example) == []


@in_memory
def test_what_would_fail_half_way_changes_nothing(world: World) -> None:
    manager = world.manager()
    fine, other = {"schema": "n long"}, {"schema": "n long, m long"}
    manager.declare({"queues": {"a": fine}})
    there = manager.list_queues()
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (QueueInUse, {"queues": {"b": fine, "a.dead": other}}),
        (QueueInUse, {"queues": {"b": fine}, "drop": ["a.dead"]}),
        (QueueInUse, {"queues": {"b": fine, "b.dead": other}}),
        (SchemaMismatch, {"queues": {"b.dead": other, "b": fine}}),
    ]
    for error, declaration in wrong:
        for dry_run in (True, False):
            with pytest.raises(error):
                manager.declare(declaration, drop=True, dry_run=dry_run)
    assert manager.list_queues() == there


@in_memory
def test_a_dead_letter_queue_can_be_declared_beside_its_queue(world: World) -> None:
    manager = world.manager()
    for schema in ("n long", "n long, m long"):
        declaration = {"queues": {"a": {"schema": schema}, "a.dead": {"schema": schema}}}
        assert [step.queue for step in manager.declare(declaration)] == ["a"]
        assert manager.declare(declaration) == []
    about = {"schema": "n long, m long", "lease_seconds": 60}
    assert len(manager.declare({"queues": {"a.dead": about}})) == 1
    assert manager.queue("a.dead").info.settings.lease_seconds == 60
    gone = manager.declare({"drop": ["a.dead", "a", "a"]}, drop=True)
    assert [step.queue for step in gone] == ["a", "a.dead"] and manager.list_queues() == []
    names = ["z", "b", "y", "c", "x", "d"]
    manager.declare({"queues": {name: {"schema": schema, "dead_letter": False} for name in names}})
    assert [step.queue for step in manager.declare({"drop": names}, drop=True)] == names


@in_memory
def test_a_drop_that_is_held_back_holds_that_of_its_dead_letter_queue_back(world: World) -> None:
    """The first queue was closed for ever, and then the declaration failed: nothing was changed."""
    manager = world.manager()
    orders = manager.create_queue("a", "n long")
    orders.send([{"n": 1}])
    manager.create_queue("b", "n long", dead_letter=False)
    tx = world.manager("p").transaction("held")
    tx.queue("a").receive(1)
    tx.prepare()
    declaration = {"drop": ["a", "a.dead", "b"]}
    told = {step.queue: step.held_by for step in manager.declare(declaration, drop=True)}
    assert told == {"a": ("held",), "a.dead": ("held",), "b": ()}
    assert manager.list_queues() == ["a", "a.dead"]
    tx.rollback()
    told = {step.queue: step.held_by for step in manager.declare(declaration, drop=True)}
    assert told == {"a": (), "a.dead": ()} and manager.list_queues() == []


@in_memory
def test_settings_are_checked_beside_those_that_the_queue_has_or_will_have(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = world.manager()
    about = {"schema": "n long", "redelivery_delay_seconds": 4_000}
    manager.declare({"queues": {"a": {**about, "redelivery_delay_seconds_max": 7_200}}})
    assert manager.declare({"queues": {"a": about}}) == []
    (step,) = manager.declare({"queues": {"a": {**about, "redelivery_delay_seconds": 5_000}}})
    assert step.changes == {"redelivery_delay_seconds": (4_000, 5_000)}
    for wrong in ({"lanes": True}, {"lanes": None}, {"redelivery_delay_seconds": 7_201}):
        with pytest.raises(InvalidInput):
            manager.declare({"queues": {"a": {**about, **wrong}}})
    monkeypatch.setenv("TXNQUEUE_QUEUE_REDELIVERY_DELAY_SECONDS_MAX", "7200")
    manager.declare({"queues": {"b": about}})
    monkeypatch.setenv("TXNQUEUE_QUEUE_DEAD_LETTER", "false")
    fine: dict[str, Any] = {"schema": "n long"}
    with pytest.raises(InvalidInput, match="needs dead_letter"):
        manager.declare({"queues": {"c": fine, "d": {**fine, "dead_letter_expired": True}}})
    assert "c" not in manager.list_queues()
