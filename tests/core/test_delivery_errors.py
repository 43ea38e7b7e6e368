"""What deliveries failed with is known of each message, once."""

from __future__ import annotations

from txnqueue.core.model import PositionId
from txnqueue.core.state.positions import Errors, forget_error, note_error

HERE, THERE = ("a", 0), ("b", 0)


def test_each_message_has_its_newest_error_and_messages_with_the_same_share_it() -> None:
    errors: dict[PositionId, Errors] = {}
    note_error(errors, {HERE: ((0, 1),), THERE: ((0, 0),)}, "broken")
    note_error(errors, {HERE: ((3, 5),)}, "late")
    note_error(errors, {HERE: ((2, 3),)}, "broken")
    assert set(errors[HERE]) == {(((0, 3),), "broken"), (((4, 5),), "late")}
    assert errors[THERE] == ((((0, 0),), "broken"),)


def test_what_is_forgotten_leaves_the_errors_of_others() -> None:
    errors: dict[PositionId, Errors] = {}
    note_error(errors, {HERE: ((0, 5),)}, "broken")
    forget_error(errors, HERE, ((2, 3),))
    assert errors[HERE] == ((((0, 1), (4, 5)), "broken"),)
    forget_error(errors, HERE, ((0, 5),))
    forget_error(errors, THERE, ((0, 5),))
    assert errors == {}


def test_an_error_of_part_of_a_range_is_forgotten_with_the_range() -> None:
    errors: dict[PositionId, Errors] = {}
    note_error(errors, {HERE: ((3, 4),)}, "broken")
    note_error(errors, {HERE: ((8, 9),)}, "late")
    forget_error(errors, HERE, ((2, 6), (8, 9)))
    assert errors == {}
