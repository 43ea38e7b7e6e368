"""No rule can go missing: each has its tests, and the table in the documentation says which."""

from __future__ import annotations

import pytest

from tests.specifications.conftest import TABLE, WRITING, Shown, texts


def test_every_rule_has_a_test_or_a_reason(shown: Shown) -> None:
    missing = [
        rule
        for text in texts().values()
        for rule in text["rules"]
        if rule not in shown.tests and rule not in text.get("without", {})
    ]
    assert not missing


def test_no_test_names_a_rule_that_there_is_not(shown: Shown) -> None:
    known = {rule for text in texts().values() for rule in text["rules"]}
    assert not set(shown.tests) - known


@pytest.mark.skipif(WRITING, reason="the table is being written")
def test_the_table_is_what_the_tests_say(shown: Shown) -> None:
    assert TABLE.read_text() == shown.table(texts()), "write docs/conformance.md again"
