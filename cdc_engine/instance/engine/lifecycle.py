"""Starts and stops an engine, holds its lease, serves its consumers, saves their cursors, and writes its status each second. `engine` has
the subclass for a destination, and `group_engine` the subclass for a group.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from sluice.cdc_engine.contracts import Holder
from sluice.cdc_engine.errors import LeaseLostError, NotStartedError, SluiceError, SourceConnectionError
from sluice.cdc_engine.ha.leases import open_lease
from sluice.cdc_engine.instance.consumers.sending import Sending
from sluice.cdc_engine.instance.consumers.served import Serving
from sluice.cdc_engine.instance.consumers.subscriptions import forget_requested
from sluice.cdc_engine.instance.parts import ConsumersT, OpenParts
from sluice.cdc_engine.instance.status import EngineStatus, write_status
from sluice.cdc_engine.states import EngineState
from sluice.cdc_engine.status_file import STATUS_FILE

STATUS_SECONDS = 1.0

log = structlog.get_logger()

PartsT = TypeVar("PartsT", bound=OpenParts[Any])


class Lifecycle(abc.ABC, Generic[PartsT, ConsumersT]):
    """The base of every engine. Subclasses make the parts (`_open`), stop them, and return the status. All methods may be called from any
    thread. `on_status` receives the status once per second.
    """

    # The message if another process, `who`, holds the lease.
    HELD = "{who} reads {name}; this engine takes over when {who} ends"
    # Whether `launcher` must stop this engine before the engines whose streams it reads. True for the engine of a group.
    stops_first = False

    def __init__(self, name: str, directory: Path, on_status: Callable[[EngineStatus], None]) -> None:
        self.name, self.directory, self._on_status = name, directory, on_status
        self._lease = open_lease(directory)
        self._parts: PartsT | None = None
        self._state: EngineState = EngineState.STOPPED
        self._reason = ""
        self._serving: Serving | None = None
        self._sending: Sending[Any] | None = None
        self._stopping = threading.Event()
        self._reporter: threading.Thread | None = None

    @abc.abstractmethod
    def status(self) -> EngineStatus:
        """Returns the current status, without a request to a source or a record store."""

    @abc.abstractmethod
    def _open(self) -> None:
        """Makes and starts the parts of the engine. Also makes the server for Canal clients (`_serving`) and the senders to brokers
        (`_sending`), which the caller starts afterwards. The caller must hold the lease.
        """

    @abc.abstractmethod
    def _stop_reading(self, *, lost: bool = False) -> None:
        """Stops reading sources. With `lost`, another process may hold the lease by now, so the engine does not wait for work that writes
        to the ledger.
        """

    def start(self) -> None:
        """Starts the engine. Raises LeaseLostError if another process holds the lease, and any other SluiceError if the start fails. After
        an error, nothing is open.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._begin()
        self._begin_threads()

    def stop(self) -> None:
        """Stops reading and serving, saves the consumers' cursors, and releases the lease."""
        self._stopping.set()
        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            reporter.join()
        self._end()

    def stage_first(self, seconds: float) -> None:
        """Waits up to `seconds` for changes, and stages the first batch, so that the first request after the start need not wait. An engine
        without batches does nothing. Raises no SluiceError.
        """

    @property
    def ended(self) -> bool:
        """Whether the engine ended by itself, so that `launcher` must start another engine."""
        return self._state == EngineState.LEASE_LOST

    @property
    def holds_lease(self) -> bool:
        """Whether this engine still holds the lease. An engine that has lost the lease never holds it again."""
        if self.ended:
            return False
        try:
            self._lease.check()
        except LeaseLostError:
            return False
        return True

    @property
    def consumers(self) -> ConsumersT:
        """The engine's consumers. Raises NotStartedError if the engine serves none, or has found that its lease is lost. Raises
        LeaseLostError if the check of the lease fails now.
        """
        parts = self._parts  # Reads the attribute only once, because another thread may end the engine meanwhile.
        consumers: ConsumersT | None = parts.consumers if parts is not None else None
        if consumers is None or self._state == EngineState.LEASE_LOST:
            # The text is Canal's, because programs may compare it (docs/canal.md).
            raise NotStartedError(f"destination:{self.name} should start first")
        self._lease.check()
        return consumers

    def _begin(self) -> None:
        try:
            if not self._lease.try_acquire():
                raise LeaseLostError(self._held_by(self._lease.holder()))
            self._open()
            for each in (self._serving, self._sending):
                if each is not None:
                    each.begin()
        except BaseException:
            self._end()
            raise

    def _begin_threads(self) -> None:
        self._stopping.clear()
        self._reporter = threading.Thread(target=self._report, name=f"status-{self.name}", daemon=True)
        self._reporter.start()
        threading.Thread(target=self._keep_cursors, name=f"cursors-{self.name}", daemon=True).start()

    def _end(self) -> None:
        """Ends what `_begin` has begun. Does nothing if nothing is open. If a step fails, carries out the other steps, and then raises the
        error.
        """
        with contextlib.ExitStack() as steps:  # Calls the last entry first.
            steps.callback(self._lease.release)
            steps.callback(self._close_ledger)
            steps.callback(self._close_consumers)
            steps.callback(self._stop_reading)
            steps.callback(self._stop_serving)

    def _close_ledger(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.meta.close()

    def _stop_serving(self) -> None:
        serving, sending = self._serving, self._sending
        self._serving = self._sending = None
        with contextlib.ExitStack() as steps:  # Calls the last entry first, and all of them if one fails.
            for each in (sending, serving):
                if each is not None:
                    steps.callback(each.end)

    def _close_consumers(self) -> None:
        if self._parts is None or self._parts.consumers is None:
            return
        try:
            self._parts.consumers.close()
        except SluiceError as error:
            log.warning("consumer_cursors_not_written", destination=self.name, reason=str(error))

    # ── while the engine runs ──

    def _report(self) -> None:
        while self._state != EngineState.LEASE_LOST and not self._stopping.wait(STATUS_SECONDS):
            self._report_once()

    def _report_once(self) -> None:
        try:
            try:
                self._look()
            except LeaseLostError as error:
                self._lose(str(error))
                return
            status = self.status()
            write_status(self.directory / STATUS_FILE, status)
            self._on_status(status)
        except Exception as error:  # Catches all errors: if this thread ended, nothing would check the lease.
            log.warning("status_not_written", destination=self.name, reason=f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        """Checks the lease, and tries again to listen for clients if that has failed. Raises LeaseLostError if the lease is lost."""
        self._lease.check()
        # Raises LeaseLostError if another engine has replaced the stored ledger. Otherwise this engine would keep the lease without being
        # able to write the ledger.
        self._opened().meta.require_own()
        if self._serving is not None:
            self._serving.again()

    def _lose(self, reason: str) -> None:
        """Stops reading, serving and writing, because another process may hold the lease by now."""
        self._set_state(EngineState.LEASE_LOST, reason)
        with contextlib.ExitStack() as steps:  # Calls the last entry first, and all of them if one fails.
            steps.callback(self._close_consumers)
            steps.callback(self._stop_reading, lost=True)
            # Stops serving consumers first, because another engine may already send them the same changes.
            steps.callback(self._stop_serving)

    def _keep_cursors(self) -> None:
        """Every STATUS_SECONDS, saves the cursors of consumers, and removes the consumers for which an operator called `sluice consumer
        forget`. Runs on a separate thread, so that a record store that does not answer cannot delay the check of the lease.
        """
        while self._state != EngineState.LEASE_LOST and not self._stopping.wait(STATUS_SECONDS):
            if (parts := self._parts) is None:
                continue
            try:
                forget_requested(self.directory, parts.meta, parts.consumers)
                if parts.consumers is not None:
                    parts.consumers.keep()
            except LeaseLostError:
                continue  # Ignores the error, because the status thread notices it too, and ends the reading.
            except Exception as error:  # Catches all errors: if this thread ended, nothing would save the cursors.
                log.warning(
                    "consumer_cursors_not_written", destination=self.name, reason=f"{type(error).__name__}: {error}"
                )

    def _set_state(self, state: EngineState, reason: str) -> None:
        self._state, self._reason = state, reason

    def _held_by(self, holder: Holder | None) -> str:
        who = f"process {holder.pid} on {holder.host}" if holder is not None else "another process"
        return self.HELD.format(who=who, name=self.name)

    def _opened(self) -> PartsT:
        if self._parts is None:
            raise SourceConnectionError(f"the engine of {self.name} is not started; `sluice status` shows why")
        return self._parts
