"""A session at the level of frames: transfer numbers and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnqueue.protocols.amqp.frames import NUMBERS, Begin, Frame, SessionFlow, Window
from txnqueue.protocols.amqp.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    Performative,
    Transfer,
)
from txnqueue.protocols.amqp.types import AmqpError, ErrorCondition

if TYPE_CHECKING:
    from txnqueue.protocols.amqp.session import Session

HANDLE_MAX = 65_535
WINDOW = 2_048
"""The number of transfers that a client may send before the window is renewed."""


class Channel:
    """A session of a connection, and the flow state of its frames.

    Attributes:
        number: The number of the channel, the same in both directions.
        session: The session.
        ended: Whether this end has ended it; frames from the client may still be in transit.
    """

    def __init__(self, number: int, session: Session, begin: Begin) -> None:
        """Accept a session that a client begins."""
        self.number = number
        self.session = session
        self.ended = False
        self._next_incoming_id = begin.window.next_outgoing_id
        self._incoming_window = WINDOW
        self._next_outgoing_id = 0
        self._handles: set[int] = set()

    def answer(self) -> Begin:
        """Write the begin that answers the client's."""
        return Begin(remote_channel=self.number, window=self._window(), handle_max=HANDLE_MAX)

    def take(self, frame: Frame) -> list[Frame]:
        """Process a frame from the client, and return the answering frames.

        Raises:
            AmqpError: The session must be ended.
        """
        told: list[Frame] = []
        if isinstance(frame, SessionFlow):
            performative: Performative = self._flow(frame)
            if frame.flow.echo and frame.flow.handle is None:
                told.append(SessionFlow(self._window(), Flow()))
        elif isinstance(frame, Attach | Detach | Disposition | Transfer):
            performative = frame
        else:
            raise AmqpError(
                ErrorCondition.NOT_ALLOWED, f"No {type(frame).__name__.lower()} in a session."
            )
        self._count(frame)
        told.extend(self.wire(self.session.handle(performative)))
        if self._incoming_window <= WINDOW // 2:
            self._incoming_window = WINDOW
            told.append(SessionFlow(self._window(), Flow()))
        return told

    def wire(self, performatives: list[Performative]) -> list[Frame]:
        """Add the frame-level fields to performatives of the session, in their order."""
        return [self._framed(one) for one in performatives]

    # -------------------------------------------------------------------------- helpers

    def _framed(self, performative: Performative) -> Frame:
        if isinstance(performative, Transfer):
            self._next_outgoing_id = (self._next_outgoing_id + 1) % NUMBERS
        if isinstance(performative, Flow):
            return SessionFlow(self._window(), performative)
        return performative

    def _window(self) -> Window:
        return Window(
            next_incoming_id=self._next_incoming_id,
            incoming_window=self._incoming_window,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=WINDOW,
        )

    def _flow(self, frame: SessionFlow) -> Flow:
        """Compute how many transfers the client takes beyond those already in transit to it."""
        known = frame.window.next_incoming_id or 0
        under_way = (self._next_outgoing_id - known) % NUMBERS
        flow = frame.flow
        return Flow(
            incoming_window=max(0, frame.window.incoming_window - under_way),
            handle=flow.handle,
            delivery_count=flow.delivery_count,
            link_credit=flow.link_credit,
            drain=flow.drain,
            echo=flow.echo,
            properties=flow.properties,
        )

    def _count(self, frame: Frame) -> None:
        """Count transfers, and record which handles are in use.

        Raises:
            AmqpError: A handle is in use.
        """
        if isinstance(frame, Transfer):  # a client that sends too many is not read from
            self._incoming_window -= 1
            self._next_incoming_id = (self._next_incoming_id + 1) % NUMBERS
        elif isinstance(frame, Attach):
            self._attach(frame.handle)
        elif isinstance(frame, Detach):
            self._handles.discard(frame.handle)

    def _attach(self, handle: int) -> None:
        if handle in self._handles:
            raise AmqpError(ErrorCondition.HANDLE_IN_USE, f"Handle {handle} is in use.")
        self._handles.add(handle)


def check_handle(frame: Frame) -> None:
    """Check that the number of a link is one that a session has.

    Raises:
        AmqpError: It is too high: the connection must be closed.
    """
    handle = None
    if isinstance(frame, Attach | Detach | Transfer):
        handle = frame.handle
    elif isinstance(frame, SessionFlow):
        handle = frame.flow.handle
    if handle is not None and handle > HANDLE_MAX:
        why = f"Handle {handle}: the highest is {HANDLE_MAX}."
        raise AmqpError(ErrorCondition.FRAMING_ERROR, why)
