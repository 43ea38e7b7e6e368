"""The xid: a branch's name, assigned by a transaction manager."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes

from txnqueue.core.settings import BRANCH_PREFIX, shown
from txnqueue.errors import InvalidInput, LimitExceeded

DATA_LENGTH_MAX = 128
FORMAT_ID_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Xid:
    """The name of a branch; xids are equal if all their parts are.

    Attributes:
        format_id: Its format, which depends on the transaction manager.
        gtrid_length: The number of octets that name the distributed transaction.
        bqual_length: The number of following octets that name the branch.
        data: The octets, at most 128.

    Raises:
        InvalidInput: The lengths do not fit the data, or a part has another type.
        LimitExceeded: The data is too long, or the format id out of range.
    """

    format_id: int
    gtrid_length: int
    bqual_length: int
    data: bytes

    def __post_init__(self) -> None:
        """Check the parts."""
        for name in ("format_id", "gtrid_length", "bqual_length"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidInput(f"{name}={shown(value)}: give a whole number.", name=name)
        if not isinstance(self.data, bytes):
            raise InvalidInput(f"data={shown(self.data)}: give bytes.", name="data")
        if not 0 <= self.format_id <= FORMAT_ID_MAX:
            raise LimitExceeded(
                f"format_id={shown(self.format_id)}: the range is 0 to {FORMAT_ID_MAX}.",
                name="format_id",
            )
        if len(self.data) > DATA_LENGTH_MAX:
            raise LimitExceeded(
                f"The xid has {len(self.data)} octets of data; at most {DATA_LENGTH_MAX} are "
                "allowed: use shorter ids.",
                name="data",
            )
        lengths = (self.gtrid_length, self.bqual_length)
        if min(lengths) < 0 or sum(lengths) != len(self.data):
            raise InvalidInput(
                f"An xid's lengths, {shown(self.gtrid_length)} and {shown(self.bqual_length)}, do "
                f"not add up to the {len(self.data)} octets of its data: build it from its parts "
                "with Xid.of.",
                name="data",
            )

    @classmethod
    def of(cls, format_id: int, gtrid: bytes, bqual: bytes = b"") -> Xid:
        """Make an xid from the ids of a transaction and a branch."""
        for name, part in (("gtrid", gtrid), ("bqual", bqual)):
            if not isinstance(part, bytes):
                raise InvalidInput(f"{name}={shown(part)}: give bytes.", name=name)
        return cls(format_id, len(gtrid), len(bqual), gtrid + bqual)

    @property
    def gtrid(self) -> bytes:
        """The octets that name the distributed transaction."""
        return self.data[: self.gtrid_length]

    @property
    def bqual(self) -> bytes:
        """The octets that name the branch in it."""
        return self.data[self.gtrid_length :]

    @property
    def transaction_id(self) -> str:
        """The branch's id in the store, for ``manager.outcome`` and in views."""
        parts = (quote_from_bytes(part, safe="") for part in (self.gtrid, self.bqual))
        return f"{BRANCH_PREFIX}{self.format_id}:{':'.join(parts)}"

    @classmethod
    def from_transaction_id(cls, key: str) -> Xid:
        """Read an xid from the branch's id in the store."""
        format_id, gtrid, bqual = key.removeprefix(BRANCH_PREFIX).split(":")
        return cls.of(int(format_id), unquote_to_bytes(gtrid), unquote_to_bytes(bqual))


def check_xid(xid: object) -> None:
    """Check that something is an xid.

    Raises:
        InvalidInput: It is something else.
    """
    if not isinstance(xid, Xid):
        raise InvalidInput(f"xid={shown(xid)}: give an Xid.", name="xid")
