"""The loop of one broker: get a batch, send it, and ack it once the broker keeps all of it. Started and ended by `consumers.sending`.

    get ─▶ messages ─▶ send ─▶ broker keeps all ─▶ ack
                         └────▶ refused, or not known ─▶ rollback: the batch comes again, after a pause

The ack follows the broker's, and the cursor in the ledger follows the ack: what ends in between comes again, and nothing is ever left out.
A message that the broker refuses is sent until it is taken: to pass it by would be to lose it. `status` says why the consumer waits.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import structlog

from cdc_engine.brokers.publisher import Message, Publisher
from cdc_engine.errors import CanalServiceError, SluiceError

WAIT_SECONDS = 5.0  # for the next batch in one go
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 30.0
STOP_SECONDS = 10.0
LOOK_SECONDS = 0.1  # between two looks whether it may still send

ContentT = TypeVar("ContentT")
ContentT_co = TypeVar("ContentT_co", covariant=True)
log = structlog.get_logger()


class Taken(Protocol[ContentT_co]):
    """A consumer's service; `server.consumer.ConsumerService`. `undelivered`: why what it took cannot be sent on, for the status."""

    undelivered: str

    def get(self, bytes_max: int, timeout_seconds: float = 0.0) -> tuple[int, ContentT_co | None]: ...
    def ack(self, batch_id: int) -> None: ...
    def rollback(self, batch_id: int | None = None) -> None: ...
    def stop_waiting(self) -> None: ...


class Turn(enum.Enum):
    """What came of one round."""

    SENT = "sent"
    NOTHING = "nothing"  #: nothing was there to send
    AGAIN = "again"  #: it did not come to an ack


class Sender(Generic[ContentT]):
    """`service`: the consumer, which may be another each time. `make`: the messages of what it got, given the batch's id.

    `open_publisher`: a connection to the broker; raises PublishError, or ConfigurationError. `may_send`: asked amid a batch too; False
    where the destination is another host's by now, which sends the same and what comes after it.
    """

    def __init__(
        self,
        name: str,
        service: Callable[[], Taken[ContentT]],
        make: Callable[[ContentT, int], Sequence[Message]],
        open_publisher: Callable[[], Publisher],
        *,
        bytes_max: int,
        wait_seconds: float = WAIT_SECONDS,
        pause_seconds: float = PAUSE_SECONDS,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self._may_send = may_send
        self._name, self._service, self._make, self._open_publisher = name, service, make, open_publisher
        self._bytes_max, self._wait_seconds, self._pause_seconds = bytes_max, wait_seconds, pause_seconds
        self._publisher: Publisher | None = None
        self._last: Taken[ContentT] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"broker-{name}", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """A batch that is being sent is given up: it comes again."""
        self._ended.set()
        if self._last is not None:
            self._last.stop_waiting()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        failed = 0
        while not self._ended.is_set():
            failed = failed + 1 if self.turn() is Turn.AGAIN else 0
            if failed:
                self._ended.wait(min(PAUSE_SECONDS_MAX, self._pause_seconds * 2 ** min(failed - 1, 10)))
        self._close()

    def turn(self) -> Turn:
        """One batch, if one comes in time. Raises nothing: what is wrong is told by the service, and tried again."""
        try:
            service = self._last = self._service()
            batch_id, content = service.get(self._bytes_max, self._wait_seconds)
        except SluiceError as error:
            log.debug("broker_waits", broker=self._name, reason=str(error))
            return Turn.AGAIN
        except Exception as error:  # a mistake of ours: it must not end the thread silently
            log.warning("broker_waits", broker=self._name, reason=f"{type(error).__name__}: {error}")
            return Turn.AGAIN
        if content is None:
            return Turn.NOTHING
        try:
            self._sent(self._make(content, batch_id))
            service.ack(batch_id)
        except CanalServiceError as error:  # it was unsubscribed or rolled back meanwhile, or a table cannot be read
            return self._rolled_back(service, str(error))
        except SluiceError as error:
            self._close()
            return self._rolled_back(service, str(error))
        except Exception as error:  # a mistake of ours, or of the client's library: it must not end the thread silently
            self._close()
            return self._rolled_back(service, f"{type(error).__name__}: {error}")
        service.undelivered = ""
        return Turn.SENT

    def _sent(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        if self._publisher is None:
            self._publisher = self._open_publisher()
        self._publisher.send(messages, self._giving_up())

    def _giving_up(self) -> Callable[[], bool]:
        """Whether the batch is to be given up, asked between its messages; once it is so, it stays so."""
        given_up, looked = False, 0.0

        def asked() -> bool:
            nonlocal given_up, looked
            now = time.monotonic()  # it goes on while a process is paused: the next question is a look
            if not given_up and (self._ended.is_set() or now - looked >= LOOK_SECONDS):
                given_up, looked = self._ended.is_set() or not self._may_send(), now
            return given_up

        return asked

    def _rolled_back(self, service: Taken[ContentT], why: str) -> Turn:
        service.rollback()
        if not self._ended.is_set():
            if service.undelivered != why:
                log.warning("batch_not_sent", broker=self._name, reason=why)
            service.undelivered = why
        return Turn.AGAIN

    def _close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
