"""Access rules: who may send to and receive from which queue, and the users' passwords."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from txnqueue.core.settings import check_texts, did_you_mean, shown
from txnqueue.errors import InvalidInput
from txnqueue.protocols.amqp.performatives import Role

ANONYMOUS = "anonymous"
"""The name of a user who has not authenticated."""
_COST, _BLOCK, _PARALLEL = 1 << 14, 8, 1


@dataclass(frozen=True, slots=True)
class Rule:
    """What some users may do; names may contain shell wildcards.

    Attributes:
        users: The users.
        send: The queues that they may send to.
        receive: The queues that they may receive from, and whose messages they may settle.
    """

    users: Sequence[str]
    send: Sequence[str] = ()
    receive: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check every value: a name that is no list would be one of letters, maybe wildcards.

        Raises:
            InvalidInput: One of them is no list of names.
        """
        for name in self.__slots__:
            named = check_texts(name, getattr(self, name), "a list of names")
            object.__setattr__(self, name, named)

    def allows(self, user: str, role: Role, queue: str) -> bool:
        """Return whether the rule allows a user to send to (or receive from) a queue."""
        queues = self.send if role is Role.SENDER else self.receive
        return _any(self.users, user) and _any(queues, queue)


class AccessRules:
    """The users of a server and what they may do; what no rule allows is denied.

    Example::

        rules = AccessRules.read(
            {
                "users": {"alice": hashed("secret")},
                "rules": [{"users": ["alice"], "send": ["orders"], "receive": ["invoices.*"]}],
            }
        )
    """

    def __init__(self, rules: Sequence[Rule], users: Mapping[str, str] | None = None) -> None:
        """Create access rules.

        Args:
            rules: What is allowed.
            users: The users that have a password, with its hash.

        Raises:
            InvalidInput: They are something else.
        """
        listed = isinstance(rules, Sequence) and not isinstance(rules, str)
        if not listed or not all(isinstance(one, Rule) for one in rules):
            raise InvalidInput(f"rules={shown(rules)}: give a list of Rules.", name="rules")
        if users is not None and not isinstance(users, Mapping):
            raise InvalidInput("users must map names to hashes.", name="users")
        for user, password in (users or {}).items():
            _parts(user, password)
        self._rules = tuple(rules)
        self._users = dict(users or {})

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> AccessRules:
        """Read rules in the form that a YAML file has.

        Args:
            said: ``users``, with the hashes of their passwords, and ``rules``: a list of which
                ``users`` may ``send`` to and ``receive`` from which queues.

        Raises:
            InvalidInput: The rules have another form.
        """
        _check_keys(said, ("users", "rules"), "the rules")
        users, rules = said.get("users") or {}, said.get("rules") or []
        if not isinstance(users, Mapping) or not isinstance(rules, list):
            raise InvalidInput(
                "users must map names to hashes, and rules must be a list.", name="rules"
            )
        return cls([_rule(one) for one in rules], users)

    @property
    def has_passwords(self) -> bool:
        """Whether any user has a password."""
        return bool(self._users)

    def allows(self, user: str, role: Role, queue: str) -> bool:
        """Return whether a user may send to a queue or receive from it, depending on the role."""
        return any(rule.allows(user, role, queue) for rule in self._rules)

    def knows(self, user: str, password: str) -> bool:
        """Return whether a user has this password; unknown users take equally long to check."""
        stored = self._users.get(user)
        salt, expected = _parts(user, stored) if stored is not None else (b"nobody", b"")
        return hmac.compare_digest(_hash(password, salt), expected)


def hashed(password: str) -> str:
    """Hash a password for a rules file."""
    salt = os.urandom(16)
    words = (base64.b64encode(one).decode() for one in (salt, _hash(password, salt)))
    return ":".join(("scrypt", *words))


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, dklen=32)


def _parts(user: object, stored: object) -> tuple[bytes, bytes]:
    """Split a hash into salt and digest."""
    try:
        if not isinstance(user, str) or not isinstance(stored, str):
            raise ValueError
        name, salt, digest = stored.split(":")
        if name != "scrypt":
            raise ValueError
        return base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except ValueError as error:
        raise InvalidInput(
            f"users: {user!r} has no valid password hash: use the output of txnqueue amqp "
            "password.",
            name="users",
        ) from error


def _rule(said: object) -> Rule:
    if not isinstance(said, Mapping):
        raise InvalidInput(f"rules: {said!r}: give users, send and receive.", name="rules")
    _check_keys(said, ("users", "send", "receive"), "a rule")
    lists = {name: said.get(name) or [] for name in ("users", "send", "receive")}
    for name, found in lists.items():
        if not isinstance(found, list):
            raise InvalidInput(f"rules: {name}: {found!r}: give a list of names.", name="rules")
    return Rule(**lists)


def _check_keys(said: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in said:
        if key not in known:
            raise InvalidInput(f"{key!r} is not a key of {where}: {did_you_mean(key, known)}")


def _any(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
