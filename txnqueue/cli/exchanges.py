"""Commands of the command line for exchanges: create, alter, drop, list, bind, publish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from txnqueue.cli.arguments import Queue, Reason
from txnqueue.cli.console import OpenStore, command, drop_surely
from txnqueue.cli.files import format_of, read_file, spelled_out
from txnqueue.cli.presentation import told_of_changes, told_of_exchange_drop
from txnqueue.cli.repeatable import done_once
from txnqueue.core.exchanges import DIRECT, RETURN
from txnqueue.errors import InvalidInput

if TYPE_CHECKING:
    from txnqueue.messages.publish import PublishResult
    from txnqueue.transaction import Transaction
    from txnqueue.types import ExchangeKind, Unwanted

_Exchange = Annotated[str, typer.Argument(help="The exchange's name.", show_default=False)]
_Key = Annotated[
    str, typer.Option(help="The key; of a topic exchange a pattern: 'eu.*.shoes', 'eu.#'.")
]
_Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--argument",
        help="A header that messages must have: 'name=value', or 'name'; may be repeated. "
        "'x-match=any' asks for one of them.",
    ),
]
EXCHANGE_COLUMNS = ("name", "type", "unroutable", "dead_letter", "bindings", "closing")
BINDING_COLUMNS = (
    "exchange", "queue", "routing_key", "arguments", "kind", "actor", "run_id", "recorded_at",
)  # fmt: skip


@command("create-exchange")
def create_exchange(
    session: OpenStore,
    exchange: _Exchange,
    schema: Annotated[str, typer.Option(help="The payload's columns as DDL.")],
    kind: Annotated[str, typer.Option(help="direct, topic, fanout or headers.")] = DIRECT,
    unroutable: Annotated[
        str,
        typer.Option(help="What to do with unroutable messages: return, dead_letter or refuse."),
    ] = RETURN,
    *,
    dead_letter_queue: Annotated[
        str | None, typer.Option(help="The queue for --unroutable dead_letter.")
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="No error if it exists with the same definition.")
    ] = False,
) -> None:
    """Create an exchange, to which queues of the same columns can be bound."""
    made = session.manager.create_exchange(
        exchange,
        cast("ExchangeKind", kind),  # which is checked there
        schema,
        unroutable=cast("Unwanted", unroutable),
        dead_letter_queue=dead_letter_queue,
        exist_ok=exist_ok,
    )
    session.printer.fact(made.describe(), f"The exchange {exchange} exists ({kind}).")


@command("alter-exchange")
def alter_exchange(
    session: OpenStore,
    exchange: _Exchange,
    add: Annotated[str, typer.Option(help="Nullable columns as DDL, which its queues must have.")],
) -> None:
    """Add columns to an exchange; the queues that it posts to need them first."""
    changes = session.manager.exchange(exchange).alter(add)
    told = told_of_changes(changes) or "nothing to change"
    values = {"exchange": exchange, "changes": {name: new for name, (_, new) in changes.items()}}
    session.printer.fact(values, f"{exchange}: {told}.")


@command("drop-exchange")
def drop_exchange(
    session: OpenStore,
    exchange: _Exchange,
    reason: Reason = None,
    *,
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="No error if there is no such exchange.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Required, because its bindings are deleted.")
    ] = False,
) -> None:
    """Drop an exchange with its bindings; code 75 while prepared transactions hold it back."""
    drop_surely(
        session,
        f"{exchange} and its bindings",
        lambda: session.manager.drop_exchange(exchange, reason=reason, missing_ok=missing_ok),
        told_of_exchange_drop,
        sure=yes,
    )


@command("exchanges", looks=True)
def exchanges(session: OpenStore) -> None:
    """List the exchanges."""
    manager = session.looking
    rows = [manager.exchange(name).describe() for name in manager.list_exchanges()]
    session.printer.rows(rows, EXCHANGE_COLUMNS, "There are no exchanges yet.")


@command("bindings", looks=True)
def bindings(
    session: OpenStore,
    exchange: _Exchange,
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Show every time that a queue was bound or unbound.")
    ] = False,
) -> None:
    """List which queues are bound to an exchange, since when and by whom."""
    rows = session.looking.exchange(exchange).bindings(history=history).rows()
    session.printer.rows(rows, BINDING_COLUMNS, "No queue is bound.")


@command("bind")
def bind(
    session: OpenStore,
    exchange: _Exchange,
    queue: Queue,
    key: _Key = "",
    argument: _Arguments = None,
) -> None:
    """Let a queue get what is published to an exchange from now on."""
    new = session.manager.exchange(exchange).bind(queue, key, _asked(argument))
    values = {"exchange": exchange, "queue": queue, "routing_key": key, "changed": new}
    sentence = "is bound to" if new else "was already bound to"
    session.printer.fact(values, f"{queue} {sentence} {exchange}.")


@command("unbind")
def unbind(
    session: OpenStore,
    exchange: _Exchange,
    queue: Queue,
    key: _Key = "",
    argument: _Arguments = None,
) -> None:
    """Remove a binding: give the key and arguments with which it was made."""
    gone = session.manager.exchange(exchange).unbind(queue, key, _asked(argument))
    values = {"exchange": exchange, "queue": queue, "routing_key": key, "changed": gone}
    sentence = "is no longer bound to" if gone else "had no such binding to"
    session.printer.fact(values, f"{queue} {sentence} {exchange}.")


@command("publish")
def publish(
    session: OpenStore,
    exchange: _Exchange,
    file: Annotated[
        str, typer.Argument(help="A file as for send; its columns are the exchange's.")
    ],
    key: Annotated[str, typer.Option(help="The routing key of all messages.")] = "",
    key_column: Annotated[
        str | None,
        typer.Option(help="Alternatively, the column of the exchange with the routing key."),
    ] = None,
    *,
    header: Annotated[
        list[str] | None, typer.Option(help="A header, 'name=value'; may be repeated.")
    ] = None,
    transaction_id: Annotated[
        str | None,
        typer.Option(help="An id for the work: repeating it under the same id publishes nothing."),
    ] = None,
) -> None:
    """Publish a file's rows, one message per row, all in one transaction."""
    format_of(file)  # before Spark starts; whether it is there is asked once it is needed
    headers = {name: value or "" for name, value in _asked(header).items()}

    def work(tx: Transaction) -> PublishResult:
        into = tx.exchange(exchange)
        rows = read_file(session.spark, into.schema, file)
        with spelled_out(file):
            return into.publish(
                rows, routing_key=key, routing_key_column=key_column, headers=headers
            )

    about = f"publish to {exchange}"
    published, receipt = done_once(session.manager, work, transaction_id, about)
    count, unwanted = (0, 0) if published is None else (published.count, published.unroutable)
    values = {
        "exchange": exchange,
        "count": count,
        "unroutable": unwanted,
        "queues": {} if published is None else dict(published.queues),
        "already_committed": published is None,
        "transaction_id": receipt.transaction_id,
        "commit_seq": receipt.commit_seq,
    }
    sentence = (
        f"Published {count} messages to {exchange}, {unwanted} of them unroutable"
        if published is not None
        else f"Already committed, nothing was published: transaction {receipt.transaction_id}"
    )
    session.printer.fact(values, f"{sentence} (commit_seq {receipt.commit_seq}).")
    if unwanted and session.manager.exchange(exchange).info.unroutable == RETURN:
        session.printer.note(
            f"No queue gets the {unwanted} unroutable messages: bind one, and publish these rows "
            "again, under another id."
        )


def _asked(arguments: Sequence[str] | None) -> dict[str, str | None]:
    """Read 'name=value' and 'name'.

    Raises:
        InvalidInput: A text has no name, or a name is given twice.
    """
    found: dict[str, str | None] = {}
    for text in arguments or ():
        name, equals, value = text.partition("=")
        if not name:
            raise InvalidInput(f"{text!r}: write 'name=value'.")
        if name in found:
            raise InvalidInput(f"{text!r}: {name!r} is given twice.")
        found[name] = value if equals else None
    return found
