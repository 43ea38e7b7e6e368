"""Authentication of clients: the SASL mechanisms that a server offers.

Clients from other machines cannot be anonymous, and passwords are accepted only where others
cannot read them.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def mechanisms(caller: Caller, rules: AccessRules | None) -> list[str]:
    """List the mechanisms that a client may choose from; none if it cannot be admitted at all."""
    offered = []
    if caller.certified is not None:
        offered.append("EXTERNAL")
    if rules is not None and rules.has_passwords and (caller.secure or caller.loopback):
        offered.append("PLAIN")
    if caller.loopback:
        offered.append("ANONYMOUS")
    return offered


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
