"""The queues that a message goes to, by the rules of one message at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnqueue.core.exchanges import Binding, by_queue, rule_of


def matched(
    kind: str, bindings: Iterable[Binding], key: str, headers: Mapping[str, str]
) -> list[str]:
    """List the ids of the queues that a message goes to, each once."""
    grouped = by_queue(bindings).items()
    return [queue_id for queue_id, mine in grouped if rule_of(kind, mine)(key, headers)]
