"""Errors: what they say, and what they carry. That each ``raise`` fits its class, mypy checks."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from txnqueue import errors

CLASSES = [
    found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, errors.TxnQueueError)
]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_says_what_to_do_and_stands_in_the_tree(error: Any) -> None:
    assert str(error()) == inspect.cleandoc(error.__doc__) == error().message
    assert error.__name__ in errors.__doc__


def test_what_an_error_carries_is_an_attribute_and_survives_a_copy_and_another_process() -> None:
    lost = errors.LeaseLost("The lease was lost.", queue="orders", claim=(0, 7))
    for one in (lost, copy.copy(lost), pickle.loads(pickle.dumps(lost))):
        assert (str(one), one.queue, one.claim, one.consumer) == (
            "The lease was lost.",
            "orders",
            (0, 7),
            None,
        )
