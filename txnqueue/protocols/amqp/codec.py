"""Octets of AMQP 1.0, by the codec of Apache Qpid Proton.

The descriptors are those of the specification; fields and sections that a queue has no use for
are skipped.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from txnqueue.core.instants import EPOCH
from txnqueue.core.settings import shown
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.protocols.amqp.types import (
    Accepted,
    AmqpData,
    AmqpSequence,
    AmqpValue,
    ApplicationProperties,
    Condition,
    Coordinator,
    Declare,
    Declared,
    Described,
    Discharge,
    Error,
    ErrorCondition,
    Header,
    Modified,
    Properties,
    Received,
    Rejected,
    Released,
    Section,
    TransactionalState,
    TransactionError,
    TxnCapability,
    transaction_id,
)

_SKIPPED = frozenset({0x71, 0x72, 0x78})
"""Sections that a queue ignores: the annotations and the footer."""
DESCRIPTION_OCTETS_MAX = 300
"""The maximum length of an error description: it fits into frames of the smallest size."""
SECTION_VALUES_MAX = 65_535
"""The number of values that the library holds of one section, lists and maps included."""
DATA_SECTIONS_MAX = 65_535
OTHER_SECTIONS_MAX = 16
"""The number of sections of a message; apart from data, only sequences may be several.

The time to read a message is that of its values, of which a client could otherwise send millions.
"""
Octets = TypeVar("Octets", bytes, memoryview)
_DECIMAL_EXPONENT_BITS = {32: 8, 64: 10, 128: 14}
_UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError)
"""Errors caused by octets that are not AMQP, or are nested too deeply."""


class ProtonCodec:
    """Encodes and decodes sections and described types; needs python-qpid-proton."""

    def __init__(self) -> None:
        """Load the library.

        Raises:
            PlatformMissing: It is not installed.
        """
        try:
            import proton
        except ImportError as error:
            raise PlatformMissing(
                "AMQP octets need python-qpid-proton: pip install 'txnqueue[amqp]'."
            ) from error
        self._proton: Any = proton
        self._decimal_bits = {proton.decimal32: 32, proton.decimal64: 64, proton.decimal128: 128}
        self._getters = {**proton.Data.get_mappings, proton.Data.MAP: _pairs}

    def encode(self, sections: Sequence[Section]) -> bytes:
        """Write a message.

        Raises:
            InvalidInput: A value has no type in AMQP.
        """
        return b"".join(self.encode_type(section) for section in sections)

    def decode(self, octets: bytes) -> tuple[Section, ...]:
        """Read a message.

        Raises:
            InvalidInput: The octets are not a message, or have sections that a queue cannot take.
        """
        sections: list[Any] = []
        count = data_count = 0
        rest = memoryview(octets)  # to cut off a section must not copy those behind it
        while rest:
            found, rest = self._read(rest)
            count, data_count = count + 1, data_count + isinstance(found, AmqpData)
            if data_count > DATA_SECTIONS_MAX or count - data_count > OTHER_SECTIONS_MAX:
                raise InvalidInput(
                    f"A message has at most {DATA_SECTIONS_MAX} data sections, and "
                    f"{OTHER_SECTIONS_MAX} others."
                )
            if isinstance(found, Section):
                sections.append(found)
            elif found is not None:
                raise InvalidInput(
                    f"{shown(found)} is not a section that a queue takes: send a header, "
                    "properties, application properties and a body."
                )
        return tuple(sections)

    def encode_type(self, value: Any) -> bytes:
        """Write one value: a section, a described type, or what a row may hold.

        Raises:
            InvalidInput: It has no type in AMQP.
        """
        data = self._proton.Data()
        try:
            data.put_object(self._wire(value))
            return bytes(data.encode())
        except self._proton.ProtonException as error:
            why = f"{error}; a section has at most {SECTION_VALUES_MAX} values"
            raise InvalidInput(f"{shown(value)} cannot be written in AMQP: {why}.") from error
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise InvalidInput(f"{shown(value)} cannot be written in AMQP: {error}") from error

    def decode_type(self, octets: bytes) -> Any:
        """Read one value.

        Raises:
            InvalidInput: The octets are not exactly one value.
        """
        value, rest = self._read(octets)
        if rest:
            raise InvalidInput(
                f"{len(rest)} octets follow the value: give the octets of one value."
            )
        return value

    # ------------------------------------------------------------------------ for frames

    def decode_first(self, octets: bytes) -> tuple[Any, bytes]:
        """Read the first value in some octets.

        Returns:
            The value, and the remaining octets.

        Raises:
            InvalidInput: The octets do not begin with a value.
        """
        return self._read(octets)

    def encode_described(self, code: int, fields: Sequence[Any]) -> bytes:
        """Write a described list of fields that ``encode_type`` and these methods accept."""
        return self.encode_type(self.described(code, fields))

    def described(self, code: int, fields: Sequence[Any]) -> Any:
        """Make a described list to be a field of another one."""
        return self._described(code, [self._wire(one) for one in fields])

    def symbol(self, text: str) -> Any:
        """Make a symbol."""
        return self._proton.symbol(text)

    def symbols(self, texts: Sequence[str]) -> Any:
        """Make an array of symbols; None if there are none."""
        if not texts:
            return None
        array = self._proton.Array(self._proton.UNDESCRIBED, self._proton.Data.SYMBOL)
        array.elements = tuple(self.symbol(text) for text in texts)
        return array

    def ubyte(self, number: int | None) -> Any:
        """Make a number of 8 bits."""
        return None if number is None else self._proton.ubyte(number)

    def ushort(self, number: int | None) -> Any:
        """Make a number of 16 bits."""
        return None if number is None else self._proton.ushort(number)

    def uint(self, number: int | None) -> Any:
        """Make a number of 32 bits."""
        return None if number is None else self._proton.uint(number)

    def ulong(self, number: int | None) -> Any:
        """Make a number of 64 bits."""
        return None if number is None else self._proton.ulong(number)

    # -------------------------------------------------------------------------- helpers

    def _read(self, octets: Octets) -> tuple[Any, Octets]:
        data = self._proton.Data()
        data.get_mappings = self._getters
        try:
            size = data.decode(octets)
            data.rewind()
            data.next()
            # Binaries are views of the library's memory, which is freed with ``data``.
            return self._typed(data.get_object()), octets[size:]
        except (self._proton.ProtonException, *_UNREADABLE) as error:
            raise InvalidInput(f"These octets are not valid AMQP: {error}") from error

    def _described(self, code: int, fields: Any) -> Any:
        return self._proton.Described(self._proton.ulong(code), fields)

    def _wire(self, value: Any) -> Any:  # noqa: PLR0911 - a line for each type
        """Convert a value to the types of Proton."""
        symbol = self._proton.symbol
        if isinstance(value, datetime.datetime):
            return self._proton.timestamp(round(value.timestamp() * 1000))
        if isinstance(value, Mapping):
            return {self._wire(key): self._wire(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._wire(one) for one in value]
        if isinstance(value, TxnCapability):
            return symbol(value.value)
        code = _CODES.get(type(value))
        if code is None:
            return value
        if isinstance(value, ApplicationProperties):
            return self._described(
                code, {key: self._wire(one) for key, one in value.values.items()}
            )
        if isinstance(value, Properties):
            return self._described(code, self._properties(value))
        if isinstance(value, AmqpValue):
            return self._described(code, self._wire(value.value))
        if isinstance(value, Header):
            ubyte, uint = self._proton.ubyte, self._proton.uint
            priority = None if value.priority is None else ubyte(value.priority)
            ttl = None if value.ttl is None else uint(value.ttl)
            count = uint(value.delivery_count)
            fields = [value.durable, priority, ttl, value.first_acquirer, count]
            return self._described(code, fields)
        if isinstance(value, Coordinator):
            array = self.symbols([_plain(one) for one in value.capabilities])
            return self._described(code, [] if array is None else [array])
        if isinstance(value, Error):
            return self._described(code, [symbol(value.symbol), _shortened(value.description)])
        if isinstance(value, AmqpData):
            return self._described(code, value.octets)
        if isinstance(value, AmqpSequence):
            return self._described(code, self._wire(value.values))
        if isinstance(value, Received):
            section, offset = value.section_number, value.section_offset
            return self._described(code, [self._proton.uint(section), self._proton.ulong(offset)])
        return self._described(code, [self._wire(one) for one in _FIELDS[type(value)](value)])

    def _properties(self, value: Properties) -> list[Any]:
        kind = None if value.content_type is None else self.symbol(value.content_type)
        created = None if value.creation_time is None else self._wire(value.creation_time)
        found = [value.message_id, None, value.to, value.subject, value.reply_to]
        found += [value.correlation_id, kind, None, None, created, value.group_id]
        while found and found[-1] is None:
            found.pop()
        return found

    def _typed(self, value: Any) -> Any:  # noqa: PLR0911 - a line for each type
        """Convert a value from the types of Proton."""
        described = self._proton.Described
        if isinstance(value, memoryview):
            return bytes(value)
        if isinstance(value, self._proton.timestamp):
            return _instant(value)
        if isinstance(value, self._proton.Array):
            return [self._typed(one) for one in value.elements]
        bits = self._decimal_bits.get(type(value))
        if bits is not None:
            return _decimal(value if bits < 128 else int.from_bytes(value, "big"), bits)
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, _Pairs):
            return {_key(self._typed(key)): self._typed(one) for key, one in value}
        if isinstance(value, list):
            return [self._typed(one) for one in value]
        if isinstance(value, described):
            return self._of_descriptor(value)
        for plain in (int, float, str):
            if isinstance(value, plain):
                return plain(value)
        return value

    def _of_descriptor(self, value: Any) -> Any:
        descriptor = value.descriptor
        name = str(descriptor) if isinstance(descriptor, str) else int(descriptor)
        code = _NAMES.get(name) if isinstance(name, str) else name
        if code in _SKIPPED:
            return None
        read = _READ.get(code or -1)
        inside = self._typed(value.value)
        if read is None:
            return Described(name, inside)
        try:
            return read(inside)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"{shown(value)} lacks a field, or has an invalid one: {error}"
            ) from error


class _Pairs(list[tuple[Any, Any]]):
    """A map as it was read; which of its values can be keys is not known yet."""


def _pairs(data: Any) -> _Pairs:
    """Read a map of the library's."""
    found = _Pairs()
    data.enter()
    while data.next():
        key = data.get_object()
        found.append((key, data.get_object() if data.next() else None))
    data.exit()
    return found


def _key(value: Any) -> Any:
    """Make a key of a value: decimals and UUIDs are text, as columns take them.

    Thousands of them can have one hash, and each would be compared with all others. Octets are
    the delivery-tags of an attach; their hashes are random.
    """
    if isinstance(value, Decimal | UUID):
        return str(value)
    if value is None or isinstance(value, bytes | datetime.datetime | float | int | str):
        return value
    raise TypeError(f"{shown(value)} cannot be a key of a map")


def _field(fields: Sequence[Any], number: int, default: Any = None) -> Any:
    """Read a field of a list, from whose end omitted fields are missing."""
    return fields[number] if len(fields) > number and fields[number] is not None else default


def _typed_field(fields: Sequence[Any], number: int, kind: type, default: Any = None) -> Any:
    """Read a field that has one type, which is checked before anything relies on it."""
    found = _field(fields, number, default)
    if found is not None and type(found) is not kind:
        raise TypeError(f"field {number} is {shown(found)}")
    return found


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"it is {shown(value)}")
    return value


class _FarInstant(int):
    """A timestamp outside Python's range, in milliseconds: what uses it refuses it."""


def _instant(milliseconds: int) -> datetime.datetime | _FarInstant:
    try:
        return EPOCH + datetime.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return _FarInstant(milliseconds)


def _plain(symbol: str) -> str:
    return symbol.value if isinstance(symbol, TxnCapability) else symbol


def _condition(symbol: str) -> Condition:
    """Read an error condition: as our enum member if there is one, else unchanged."""
    for known in (TransactionError, ErrorCondition):
        with contextlib.suppress(ValueError):
            return known(symbol)
    if not isinstance(symbol, str) or not symbol.isascii():
        raise TypeError("an error has a condition, which is a symbol")
    return symbol


def _capabilities(found: Any) -> tuple[TxnCapability | str, ...]:
    symbols = [found] if isinstance(found, str) else found or ()
    known = {one.value: one for one in TxnCapability}
    return tuple(known.get(one, one) for one in symbols)


def _properties_of(fields: Sequence[Any]) -> Properties:
    created = _field(fields, 9)
    if not isinstance(created, _FarInstant):
        created = _typed_field(fields, 9, datetime.datetime)
    return Properties(
        message_id=_id(_field(fields, 0)),
        to=_text(_field(fields, 2)),
        subject=_text(_field(fields, 3)),
        reply_to=_text(_field(fields, 4)),
        correlation_id=_id(_field(fields, 5)),
        content_type=_text(_field(fields, 6)),
        creation_time=created,
        group_id=_text(_field(fields, 10)),
    )


_CODES: dict[type, int] = {
    Coordinator: 0x30,
    Declare: 0x31,
    Discharge: 0x32,
    Declared: 0x33,
    TransactionalState: 0x34,
    Error: 0x1D,
    Received: 0x23,
    Accepted: 0x24,
    Rejected: 0x25,
    Released: 0x26,
    Modified: 0x27,
    Header: 0x70,
    Properties: 0x73,
    ApplicationProperties: 0x74,
    AmqpData: 0x75,
    AmqpSequence: 0x76,
    AmqpValue: 0x77,
}
_NAMES = {
    "amqp:coordinator:list": 0x30,
    "amqp:declare:list": 0x31,
    "amqp:discharge:list": 0x32,
    "amqp:declared:list": 0x33,
    "amqp:transactional-state:list": 0x34,
    "amqp:error:list": 0x1D,
    "amqp:received:list": 0x23,
    "amqp:accepted:list": 0x24,
    "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26,
    "amqp:modified:list": 0x27,
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": 0x78,
}
_FIELDS: dict[type, Callable[[Any], list[Any]]] = {
    Declare: lambda v: [] if v.global_id is None else [v.global_id],
    Discharge: lambda v: [v.txn_id] if v.fail is None else [v.txn_id, v.fail],
    Declared: lambda v: [v.txn_id],
    TransactionalState: lambda v: [v.txn_id] if v.outcome is None else [v.txn_id, v.outcome],
    Accepted: lambda _v: [],
    Rejected: lambda v: [] if v.error is None else [v.error],
    Released: lambda _v: [],
    Modified: lambda v: [v.delivery_failed, v.undeliverable_here],
}
_READ: dict[int, Callable[[Any], Any]] = {
    0x30: lambda f: Coordinator(_capabilities(_field(f, 0))),
    0x31: lambda f: Declare(_field(f, 0)),
    0x32: lambda f: Discharge(transaction_id(_field(f, 0)), _typed_field(f, 1, bool)),
    0x33: lambda f: Declared(transaction_id(_field(f, 0))),
    0x34: lambda f: TransactionalState(transaction_id(_field(f, 0)), _field(f, 1)),
    0x1D: lambda f: Error(_condition(f[0]), _typed_field(f, 1, str, "")),
    0x23: lambda f: Received(f[0], f[1]),
    0x24: lambda _f: Accepted(),
    0x25: lambda f: Rejected(_typed_field(f, 0, Error)),
    0x26: lambda _f: Released(),
    0x27: lambda f: Modified(
        _typed_field(f, 0, bool, default=False), _typed_field(f, 1, bool, default=False)
    ),
    0x70: lambda f: Header(
        _typed_field(f, 1, int),
        _typed_field(f, 2, int),
        _typed_field(f, 3, bool, default=False),
        _typed_field(f, 4, int, 0),
        _typed_field(f, 0, bool, default=False),
    ),
    0x73: _properties_of,
    0x74: lambda f: ApplicationProperties({_name(k): v for k, v in f.items()}),
    0x75: lambda f: AmqpData(_checked(f, bytes)),
    0x76: lambda f: AmqpSequence(_checked(f, list)),
    0x77: AmqpValue,
}


def _decimal(octets: int, bits: int) -> Decimal:
    """Read a decimal in the Binary Integer Decimal encoding of IEEE 754-2008."""
    exponent_bits = _DECIMAL_EXPONENT_BITS[bits]
    sign, rest = octets >> (bits - 1), octets & ((1 << (bits - 1)) - 1)
    if rest >> (bits - 5) == 0b1111:
        return Decimal("NaN" if rest >> (bits - 6) & 1 else "-Infinity" if sign else "Infinity")
    large = rest >> (bits - 3) == 0b11  # then three bits of the coefficient are implied
    digits_bits = bits - 1 - exponent_bits - (2 if large else 0)
    exponent = rest >> digits_bits & ((1 << exponent_bits) - 1)
    digits = rest & ((1 << digits_bits) - 1) | (0b100 << digits_bits if large else 0)
    precision = (bits // 32) * 9 - 2
    if digits >= 10**precision:
        digits = 0  # so the standard reads what is not canonical
    bias = (3 << (exponent_bits - 3)) + precision - 2
    return Decimal((sign, tuple(map(int, str(digits))), exponent - bias))


def _shortened(description: str | None) -> str | None:
    """Keep only the beginning and the end of a long description, which may quote the input."""
    octets = (description or "").encode("utf-8", "backslashreplace")
    if len(octets) <= DESCRIPTION_OCTETS_MAX:
        return octets.decode() if description is not None else None
    half = DESCRIPTION_OCTETS_MAX // 2 - 2
    parts = (part.decode("utf-8", "ignore") for part in (octets[:half], octets[-half:]))
    return "…".join(parts)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _name(key: Any) -> str:
    """Read the name of an application-property; octets are none."""
    if isinstance(key, bytes):
        raise TypeError(f"{shown(key)} is no name")
    return str(key)


def _id(value: Any) -> str | None:
    """Read a message's id as text, and a binary in the form that headers have it."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else _text(value)
