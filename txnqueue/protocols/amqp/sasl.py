"""Authentication of clients: the SASL mechanisms that a server offers.

Clients from other machines cannot be anonymous, and passwords are accepted only where others
cannot read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txnqueue.protocols.amqp.access import ANONYMOUS, AccessRules
from txnqueue.protocols.amqp.frames import Init


@dataclass(frozen=True, slots=True)
class Caller:
    """What the socket tells about a client.

    Attributes:
        secure: Whether the connection is encrypted.
        loopback: Whether the client is on this machine.
        certified: The name in the client's certificate, verified by TLS.
    """

    secure: bool
    loopback: bool
    certified: str | None = None


def name_in(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the common name in a certificate; None if it has none or several, or no user's.

    What is written in certificates is up to whoever signs them.
    """
    pairs = [pair for group in (certificate or {}).get("subject", ()) for pair in group]
    names = [value for kind, value in pairs if kind == "commonName"]
    if len(names) != 1 or names[0] == ANONYMOUS or not names[0].isprintable():
        return None
    return names[0] if names[0].strip() else None


def mechanisms(caller: Caller, rules: AccessRules | None) -> list[str]:
    """List the mechanisms that a client may choose from.

    One that cannot be admitted at all is offered what it lacks, because a list must not be empty.
    """
    offered = []
    if caller.certified is not None:
        offered.append("EXTERNAL")
    if rules is not None and rules.has_passwords and (caller.secure or caller.loopback):
        offered.append("PLAIN")
    if caller.loopback:
        offered.append("ANONYMOUS")
    return offered or ["EXTERNAL"]


def identity(init: Init, caller: Caller, rules: AccessRules | None) -> str | None:
    """Return the user name of a client; None if it is refused."""
    if init.mechanism not in mechanisms(caller, rules):
        return None
    if init.mechanism == "EXTERNAL":
        asked = _text(init.response)
        return caller.certified if asked in ("", caller.certified) else None
    if init.mechanism == "PLAIN":
        assert rules is not None
        return _plain(init.response, rules)
    return ANONYMOUS


def _plain(response: bytes, rules: AccessRules) -> str | None:
    """Read authorization id, user and password; acting for another user is refused."""
    words = (_text(response) or "").split("\0")
    if len(words) != 3 or words[1] == ANONYMOUS or words[0] not in ("", words[1]):
        return None
    return words[1] if rules.knows(words[1], words[2]) else None


def _text(octets: bytes) -> str | None:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return None
