"""Commands for the AMQP 1.0 listener: ``txnqueue amqp serve``, ``txnqueue amqp password``."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from txnqueue.cli.console import OpenStore, app, command
from txnqueue.cli.files import read_yaml
from txnqueue.cli.presentation import written_address
from txnqueue.cli.signals import check_grace, on_sigterm
from txnqueue.core.settings import is_whole
from txnqueue.errors import InvalidInput, PlatformMissing

if TYPE_CHECKING:
    from txnqueue.protocols.amqp import AccessRules

WAIT_SECONDS = 0.2
"""How often the command looks whether it is to stop."""
ENDING_SECONDS = 5.0
"""What a server that stops has beyond the grace, to roll back for clients it waited for in vain."""

amqp = typer.Typer(name="amqp", help="Serve clients of AMQP 1.0.", no_args_is_help=True)
app.add_typer(amqp)


@command("serve", group=amqp, short_lived=False)
def serve(
    session: OpenStore,
    *,
    listen: Annotated[
        str,
        typer.Option(help="HOST:PORT; addresses reachable from other machines need --tls-cert."),
    ] = "127.0.0.1:5672",
    rules: Annotated[
        str | None,
        typer.Option(help="A YAML file: who may send to and receive from which queue."),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="The server's certificate (PEM), with its chain.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[
        str | None,
        typer.Option(help="The CA of clients' certificates (PEM), whose names become users."),
    ] = None,
    connections_max: Annotated[
        int, typer.Option(min=1, help="The maximum number of clients at once.")
    ] = 200,
    message_bytes_max: Annotated[
        int, typer.Option(min=1, help="The longest message that a client may send.")
    ] = 16 * 1024 * 1024,
    idle_seconds: Annotated[
        float, typer.Option(min=0.1, help="The seconds of silence after which a client is closed.")
    ] = 60.0,
    transaction_seconds: Annotated[
        float,
        typer.Option(min=0.1, help="The seconds after which open transactions are rolled back."),
    ] = 600.0,
    grace_seconds: Annotated[
        float, typer.Option(min=0, help="How many seconds work in progress may take after SIGTERM.")
    ] = 30.0,
) -> None:
    """Serve clients of AMQP 1.0 until SIGTERM."""
    with _needing_spark():
        from txnqueue.protocols.amqp import AmqpServer, Limits
        from txnqueue.protocols.amqp.limits import NUMBER_MAX

    check_grace(grace_seconds)
    host, port = _address(listen)
    known = None if rules is None else _rules(rules)
    limits = Limits(
        connections=connections_max,
        message_bytes=message_bytes_max,
        partial_bytes=min(4 * message_bytes_max, NUMBER_MAX),
    )
    tls = _tls(tls_cert, tls_key, tls_client_ca)
    server = AmqpServer(
        session.manager,
        host,
        port,
        tls=tls,
        rules=known,
        limits=limits,
        idle_seconds=idle_seconds,
        transaction_seconds=transaction_seconds,
    )
    with on_sigterm(grace_seconds + WAIT_SECONDS + ENDING_SECONDS) as stop:
        try:
            server.start()
            host, port = server.address
            session.printer.fact(
                {"host": host, "port": port}, f"AMQP 1.0 on {written_address(host, port)}."
            )
            while not stop():
                time.sleep(WAIT_SECONDS)
        except KeyboardInterrupt:  # as good as SIGTERM
            pass
        finally:
            server.stop(grace_seconds, grace_seconds + ENDING_SECONDS)


@command("password", group=amqp)
def password(session: OpenStore) -> None:
    """Ask for a password, and print its hash for a file of rules."""
    with _needing_spark():
        from txnqueue.protocols.amqp import hashed

    found = hashed(_asked())
    session.printer.fact({"hash": found}, found)


@contextmanager
def _needing_spark() -> Iterator[None]:
    """Say what is missing where the protocols cannot be imported: they know Spark's types."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "pyspark":
            raise
        raise PlatformMissing(missing="pyspark") from error


def _asked() -> str:
    """Ask for a password.

    Raises:
        InvalidInput: Nobody answers.
        KeyboardInterrupt: By Ctrl-C, which typer takes for no answer, too.
    """
    try:
        return str(typer.prompt("Password", hide_input=True, err=True))
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise InvalidInput("There is no password: type one, or give it on stdin.") from error


def _rules(file: str) -> AccessRules:
    from txnqueue.protocols.amqp import AccessRules

    found = read_yaml(file)
    try:
        return AccessRules.read(found)
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}") from error


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not is_whole(port) or int(port) > 65_535:
        raise InvalidInput(f"--listen {listen}: give HOST:PORT, such as 127.0.0.1:5672.")
    return host.strip("[]"), int(port)


def _tls(cert: str | None, key: str | None, client_ca: str | None) -> ssl.SSLContext | None:
    """Read the certificates."""
    if cert is None:
        if key is not None or client_ca is not None:
            raise InvalidInput("--tls-key and --tls-client-ca need --tls-cert.")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with _named(f"--tls-cert {cert}" if key is None else f"--tls-cert {cert}, --tls-key {key}"):
        context.load_cert_chain(cert, key)
    if client_ca is not None:
        with _named(f"--tls-client-ca {client_ca}"):
            context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextmanager
def _named(files: str) -> Iterator[None]:
    """Name the files in an error of theirs: OpenSSL does not."""
    try:
        yield
    except OSError as error:  # of files, and of what is in them
        raise InvalidInput(f"{files} cannot be used: {error}") from error
