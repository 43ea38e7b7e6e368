"""Who a client is: the SASL mechanisms of AMQP 1.0 that a server offers.

Nobody is anonymous who comes from another machine, and no password is asked for where others can
read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnqueue.protocols.amqp.access import ANONYMOUS, AccessRules
from txnqueue.protocols.amqp.frames import Init


@dataclass(frozen=True, slots=True)
class Caller:
    """What the socket of a client says.

    Attributes:
        secure: Whether it is encrypted.
        loopback: Whether it comes from this machine.
        certified: The name in the client's certificate, which TLS has verified.
    """

    secure: bool
    loopback: bool
    certified: str | None = None


def mechanisms(caller: Caller, rules: AccessRules | None) -> list[str]:
    """List what a client may choose from; nothing if it cannot be let in at all."""
    offered = []
    if caller.certified is not None:
        offered.append("EXTERNAL")
    if rules is not None and rules.has_passwords and (caller.secure or caller.loopback):
        offered.append("PLAIN")
    if caller.loopback:
        offered.append("ANONYMOUS")
    return offered


def identity(init: Init, caller: Caller, rules: AccessRules | None) -> str | None:
    """Find who a client is; None: it is not let in."""
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
    """Read authorization, user and password; nobody acts for somebody else."""
    words = (_text(response) or "").split("\0")
    if len(words) != 3 or words[1] == ANONYMOUS or words[0] not in ("", words[1]):
        return None
    return words[1] if rules.knows(words[1], words[2]) else None


def _text(octets: bytes) -> str | None:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return None
