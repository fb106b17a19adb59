"""Sends batches to one broker in a loop: gets a batch, sends its messages, and acks the batch when the broker has confirmed all messages.

  get ─▶ messages ─▶ send ─▶ broker confirms all ─▶ ack
            └────▶ refused or not confirmed ─▶ rollback: the batch is sent again, after a pause

The sender acks a batch only after the broker has confirmed it, and the ack moves the cursor in the ledger. So a batch that is interrupted
before the ack is sent again, and no batch is skipped. A message that the broker refuses is sent again until the broker accepts it, because
a skipped message would be lost. `sluice status` shows why the batch waits.

With a `CommittingPublisher`, the broker stores the position of each batch's end. After a crash or an error between the broker's commit and
the ack, this position is after the consumer's cursor, and the consumer continues at this position.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import structlog

from sluice.cdc_engine.brokers.publisher import CommittingPublisher, Message, Publisher
from sluice.cdc_engine.errors import CanalServiceError, SluiceError

WAIT_SECONDS = 5.0  # How long one round waits for the next batch.
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 30.0
STOP_SECONDS = 10.0
LOOK_SECONDS = 0.1  # The interval at which the sender calls `may_send` while it waits for the broker.

ContentT = TypeVar("ContentT")
ContentT_co = TypeVar("ContentT_co", covariant=True)
log = structlog.get_logger()


class ConsumerTaken(Protocol[ContentT_co]):
    """The methods of a consumer's service (`server.consumer.ConsumerService`) that the sender calls. The sender sets `undelivered` to the
    reason why a batch cannot be sent, for `sluice status`.
    """

    undelivered: str

    def get(self, bytes_max: int, timeout_seconds: float = 0.0) -> tuple[int, ContentT_co | None]: ...
    def ack(self, batch_id: int) -> None: ...
    def rollback(self, batch_id: int | None = None) -> None: ...
    def end_text(self, batch_id: int) -> str: ...
    def continue_after(self, text: str) -> bool: ...
    def stop_waiting(self) -> None: ...


class RoundResult(enum.Enum):
    """What one round of the loop did with the next batch."""

    SENT = "sent"
    NOTHING = "nothing"  #: There was nothing to send.
    #: The broker had committed a position after the cursor, and the consumer continues at this position.
    MOVED = "moved"
    AGAIN = "again"  #: The batch was not acked, and is sent again.


class BrokerSender(Generic[ContentT]):
    """Sends the batches of one consumer to a broker.

    - `service`: returns the consumer's service, which may be another object after a restart of the consumer.
    - `make`: makes the messages of a batch from the batch's content and id.
    - `open_publisher`: connects to the broker. Raises PublishError or ConfigurationError if it cannot connect.
    - `may_send`: returns whether this host may still send. Returns False if another host runs the destination now, because that host sends
      the same changes. Also called while a batch is being sent.
    """

    def __init__(
        self,
        name: str,
        service: Callable[[], ConsumerTaken[ContentT]],
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
        self._last: ConsumerTaken[ContentT] | None = None
        # The service whose cursor was last compared with the position that the broker has committed.
        self._compared: ConsumerTaken[ContentT] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"broker-{name}", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Ends the loop. A batch that is being sent is abandoned, and is sent again after the next start."""
        self._ended.set()
        if self._last is not None:
            self._last.stop_waiting()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        failed = 0
        while not self._ended.is_set():
            failed = failed + 1 if self.send_next() is RoundResult.AGAIN else 0
            if failed:
                self._ended.wait(min(PAUSE_SECONDS_MAX, self._pause_seconds * 2 ** min(failed - 1, 10)))
        self._close()

    def send_next(self) -> RoundResult:
        """Waits for a batch and sends it. Raises no error: after an error, `sluice status` shows the reason, and the batch is sent
        again.
        """
        try:
            service = self._last = self._service()
            batch_id, content = service.get(self._bytes_max, self._wait_seconds)
        except SluiceError as error:
            log.debug("next_batch_not_read", broker=self._name, reason=str(error))
            return RoundResult.AGAIN
        except Exception as error:  # A defect of Sluice, which must not end the thread silently.
            log.warning("next_batch_not_read", broker=self._name, reason=f"{type(error).__name__}: {error}")
            return RoundResult.AGAIN
        if content is None:
            return RoundResult.NOTHING
        try:
            sent = self._sent(service, batch_id, self._make(content, batch_id))
            if sent:
                service.ack(batch_id)
        # Keeps the publisher open, because the broker is not the cause: the consumer was forgotten or rolled back while the batch was sent,
        # or a table of the batch cannot be read.
        except CanalServiceError as error:
            self._compared = None
            return self._rolled_back(service, str(error))
        except SluiceError as error:
            self._close()
            return self._rolled_back(service, str(error))
        # A defect of Sluice or of the client's library must not end the thread silently.
        except Exception as error:
            self._close()
            return self._rolled_back(service, f"{type(error).__name__}: {error}")
        service.undelivered = ""
        return RoundResult.SENT if sent else RoundResult.MOVED

    def _sent(self, service: ConsumerTaken[ContentT], batch_id: int, messages: Sequence[Message]) -> bool:
        """Sends a batch and returns True. If the broker has committed a position after the consumer's cursor, sends nothing, moves the
        consumer to this position, and returns False.
        """
        if not messages:
            return True
        if self._publisher is None:
            self._publisher = self._open_publisher()
        publisher, given_up = self._publisher, self._giving_up()
        if not isinstance(publisher, CommittingPublisher):
            publisher.send(messages, given_up)
            return True
        if service is not self._compared:
            moved = service.continue_after(publisher.committed(given_up))
            self._compared = service
            if moved:
                log.info("cursor_moved_to_committed_position", broker=self._name)
                return False
        publisher.commit(messages, service.end_text(batch_id), given_up)
        return True

    def _giving_up(self) -> Callable[[], bool]:
        """Returns the function `given_up` for sending one batch. The function returns whether to abandon the batch. After it has returned
        True, it returns True at every later call.
        """
        given_up, looked = False, 0.0

        def is_given_up() -> bool:
            nonlocal given_up, looked
            # This clock also advances while the process is suspended, so `may_send` is called again after a suspension.
            now = time.monotonic()
            if not given_up and (self._ended.is_set() or now - looked >= LOOK_SECONDS):
                given_up, looked = self._ended.is_set() or not self._may_send(), now
            return given_up

        return is_given_up

    def _rolled_back(self, service: ConsumerTaken[ContentT], why: str) -> RoundResult:
        service.rollback()
        if not self._ended.is_set():
            if service.undelivered != why:
                log.warning("batch_not_sent", broker=self._name, reason=why)
            service.undelivered = why
        return RoundResult.AGAIN

    def _close(self) -> None:
        publisher, self._publisher, self._compared = self._publisher, None, None
        if publisher is None:
            return
        try:
            publisher.close()
        # A defect of a plug-in or of the client's library must not end the thread. The publisher is not used any more.
        except Exception as error:
            log.warning("publisher_not_closed", broker=self._name, reason=f"{type(error).__name__}: {error}")
