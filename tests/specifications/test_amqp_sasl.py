"""Who a client of the listener is: by a password, by a certificate, or because it is here."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")

from proton import SSL

from tests.specifications.amqp_listener import Refusal, eventually, listening
from txnqueue.protocols.amqp import AccessRules, Limits, client_connection, hashed
from txnqueue.protocols.amqp.access import ANONYMOUS
from txnqueue.protocols.amqp.frames import Init
from txnqueue.protocols.amqp.sasl import Caller, identity, mechanisms, name_in

RULES = AccessRules.read({"users": {"shop": hashed("secret")}, "rules": []})
ALL = AccessRules.read(
    {"users": {"clerk": hashed("secret")}, "rules": [{"users": ["*"], "send": ["*"]}]}
)


@pytest.mark.parametrize(
    ("caller", "offered"),
    [
        (Caller(secure=False, loopback=False), ["EXTERNAL"]),  # an empty list is not allowed
        (Caller(secure=True, loopback=False), ["PLAIN"]),
        (Caller(secure=False, loopback=True), ["PLAIN", "ANONYMOUS"]),
        (Caller(secure=True, loopback=False, certified="shop"), ["EXTERNAL", "PLAIN"]),
    ],
)
def test_what_a_client_may_choose_depends_on_where_it_is(
    caller: Caller, offered: list[str]
) -> None:
    assert mechanisms(caller, RULES) == offered
    assert "PLAIN" not in mechanisms(caller, None)
    for mechanism, response in (
        ("PLAIN", b"\0shop\0secret"),
        ("ANONYMOUS", b""),
        ("EXTERNAL", b""),
    ):
        user = ANONYMOUS if mechanism == "ANONYMOUS" else "shop"
        admitted = mechanism in offered and (mechanism != "EXTERNAL" or caller.certified)
        found = identity(Init(mechanism, response), caller, RULES)
        assert found == (user if admitted else None)


@pytest.mark.parametrize(
    ("names", "user"),
    [
        (["shop"], "shop"),
        ([], None),
        (["shop", "clerk"], None),
        ([ANONYMOUS], None),
        ([" "], None),
        (["shop\nclerk"], None),
    ],
)
def test_a_certificate_names_one_user(names: list[str], user: str | None) -> None:
    subject = ((("countryName", "DE"),), *((("commonName", name),) for name in names))
    assert name_in({"subject": subject}) == user
    assert name_in(None) is None


@pytest.mark.parametrize(
    "response",
    [b"", b"\0shop\0wrong", b"root\0shop\0secret", b"shop\0secret", b"\xff\0shop\0secret", b"\0\0"],
)
def test_nobody_is_somebody_else(response: bytes) -> None:
    assert identity(Init("PLAIN", response), Caller(secure=True, loopback=False), RULES) is None


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority, a server's certificate, a client's and somebody else's."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2"),
        )
    for name, authority in (("localhost", "ca"), ("shop", "ca"), ("thief", "other")):
        extension = folder / f"{name}.cnf"
        extension.write_text(f"subjectAltName=DNS:{name}\n")
        openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-days", "2"),
            *("-CAkey", f"{authority}.key", "-CAcreateserial", "-out", f"{name}.pem"),
            *("-extfile", str(extension)),
        )
    return folder


def server_context(certificates: Path) -> ssl.SSLContext:
    """Make the TLS context of a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "localhost.pem", certificates / "localhost.key")
    return context


def closed(wire: socket.socket) -> bool:
    """Wait until a socket is closed by the other end, and return whether it is."""
    try:
        return not wire.recv(1)
    except ConnectionResetError:
        return True


def test_a_client_counts_and_has_its_time_from_the_beginning_of_the_handshake(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connection, "OPENING_SECONDS", 3.0)
    with listening(tls=server_context(certificates), limits=Limits(connections=2)) as listener:

        def connect() -> socket.socket:
            return socket.create_connection(("127.0.0.1", listener.port), timeout=10)

        with connect() as first, connect() as second:
            assert eventually(lambda: listener.server.connections == 2)
            with connect() as third:
                assert closed(third)
            first.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert eventually(lambda: listener.server.connections == 1, 2.0)
            assert closed(second)
        assert eventually(lambda: listener.server.connections == 0)
        monkeypatch.undo()
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        with context.wrap_socket(connect(), server_hostname="localhost") as wire:
            wire.sendall(b"AMQP\x03\x01\x00\x00")
            assert wire.recv(8) == b"AMQP\x03\x01\x00\x00"
            assert listener.server.connections == 1


def test_a_stop_does_not_wait_for_clients_that_are_not_let_in(certificates: Path) -> None:
    with listening(tls=server_context(certificates)) as listener:
        with socket.create_connection(("127.0.0.1", listener.port)):
            assert eventually(lambda: listener.server.connections == 1)
            began = time.monotonic()
            listener.server.stop(grace_seconds=60)
            assert time.monotonic() - began < 30


@pytest.mark.skipif(not SSL.present(), reason="this Proton was built without OpenSSL")
def test_a_certificate_or_a_password_is_an_identity_over_tls(certificates: Path) -> None:
    context = server_context(certificates)
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    authority = str(certificates / "ca.pem")
    with listening(tls=context, rules=ALL) as listener:
        listener.manager.create_queue("orders", "n long")

        def sent_by(**said: Any) -> str:
            client = listener.client("amqps", authority=authority, **said)
            client("sender", "s", "orders")
            assert client("send", "s", {"n": 1}) == "accepted"
            return str(listener.manager.history.changes().rows()[-1]["actor"])

        shop = {
            "certificate": str(certificates / "shop.pem"),
            "key": str(certificates / "shop.key"),
        }
        assert sent_by(**shop, allowed_mechs="EXTERNAL") == "shop"
        assert sent_by(user="clerk", password="secret", allowed_mechs="PLAIN") == "clerk"
        thief = {name: value.replace("shop", "thief") for name, value in shop.items()}
        with pytest.raises(Refusal):
            sent_by(**thief, allowed_mechs="EXTERNAL", timeout=2)
        with pytest.raises(Refusal, match="amqp:unauthorized-access"):
            sent_by(allowed_mechs="EXTERNAL")
        with pytest.raises(Refusal):
            listener.client("amqp", timeout=2)  # without TLS
