"""What names a branch: an xid, of a transaction manager's making."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes

from txnqueue.core.settings import BRANCH_PREFIX
from txnqueue.errors import InvalidInput, LimitExceeded

DATA_LENGTH_MAX = 128
FORMAT_ID_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Xid:
    """The name of a branch; two are the same if all their parts are.

    Attributes:
        format_id: Which transaction manager made it, and how it is to be read.
        gtrid_length: How many octets of the data name the distributed transaction.
        bqual_length: How many octets after them name the branch.
        data: The octets, 128 at most.

    Raises:
        InvalidInput: The lengths are not those of the data, or a part has another type.
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
                raise InvalidInput(f"{name}={value!r}: give a whole number.", name=name)
        if not isinstance(self.data, bytes):
            raise InvalidInput(f"data={self.data!r}: give bytes.", name="data")
        if not 0 <= self.format_id <= FORMAT_ID_MAX:
            raise LimitExceeded(
                f"format_id={self.format_id}: the range is 0 to {FORMAT_ID_MAX}.", name="format_id"
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
                f"An xid's lengths, {self.gtrid_length} and {self.bqual_length}, do not add up to "
                f"the {len(self.data)} octets of its data: build it from its parts with Xid.of.",
                name="data",
            )

    @classmethod
    def of(cls, format_id: int, gtrid: bytes, bqual: bytes = b"") -> Xid:
        """Make an xid of a transaction's and a branch's id."""
        for name, part in (("gtrid", gtrid), ("bqual", bqual)):
            if not isinstance(part, bytes):
                raise InvalidInput(f"{name}={part!r}: give bytes.", name=name)
        return cls(format_id, len(gtrid), len(bqual), gtrid + bqual)

    @property
    def gtrid(self) -> bytes:
        """What names the distributed transaction."""
        return self.data[: self.gtrid_length]

    @property
    def bqual(self) -> bytes:
        """What names the branch in it."""
        return self.data[self.gtrid_length :]

    @property
    def transaction_id(self) -> str:
        """What the branch is called in the store: by ``manager.outcome`` and in its views."""
        parts = (quote_from_bytes(part, safe="") for part in (self.gtrid, self.bqual))
        return f"{BRANCH_PREFIX}{self.format_id}:{':'.join(parts)}"

    @classmethod
    def from_transaction_id(cls, key: str) -> Xid:
        """Read an xid back from what the branch is called in the store."""
        format_id, gtrid, bqual = key.removeprefix(BRANCH_PREFIX).split(":")
        return cls.of(int(format_id), unquote_to_bytes(gtrid), unquote_to_bytes(bqual))


def check_xid(xid: object) -> None:
    """Check that something is an xid.

    Raises:
        InvalidInput: It is something else.
    """
    if not isinstance(xid, Xid):
        raise InvalidInput(f"xid={xid!r}: give an Xid.", name="xid")
