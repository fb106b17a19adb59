"""Serves the consumers of one group from the streams of its members, whose engines run in the same process. Used by `launcher`.

A group's engine reads no source and writes no lake. The engine takes the group's lease when all members run in this process, so the host
that reads the members also serves the group. The engine serves consumers only while it holds the lease and at least one member runs in this
process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import Holder
from sluice.cdc_engine.errors import ConfigurationError, LeaseLostError, NotStartedError, SluiceError
from sluice.cdc_engine.ha.leases import open_lease
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.forms import display_of
from sluice.cdc_engine.instance.consumers.group.consumers import GroupConsumers, Runs
from sluice.cdc_engine.instance.consumers.group.members import Members
from sluice.cdc_engine.instance.consumers.group.served import GroupEntries, GroupMessages
from sluice.cdc_engine.instance.consumers.group.status import figures_of
from sluice.cdc_engine.instance.consumers.sending import Sending, name_of
from sluice.cdc_engine.instance.consumers.served import Serving, address_of
from sluice.cdc_engine.instance.consumers.subscriptions import forget_requested
from sluice.cdc_engine.instance.status import EngineStatus, write_status
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.meta.managers import open_meta
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.states import EngineState
from sluice.cdc_engine.status_file import STATUS_FILE

STATUS_SECONDS = 1.0
# If no member has run in this process for this long, the process releases the group's lease, so that another host can serve the group.
APART_SECONDS = 10.0

log = structlog.get_logger()


class GroupEngine:
    """The engine of one group. `consumers_of` returns the consumers of a member's engine in this process, or raises a SluiceError that says
    where the engine runs.

    All methods may be called from any thread. `on_status` receives the status once per second.
    """

    def __init__(
        self,
        config: SluiceConfig,
        name: str,
        consumers_of: Callable[[str], Consumers],
        *,
        on_status: Callable[[EngineStatus], None] = lambda _: None,
    ) -> None:
        self.name, self._group = name, config.groups[name]
        self.directory: Path = config.destination_dir(name)
        self._consumers_of, self._on_status = consumers_of, on_status
        self._lease = open_lease(self.directory)
        self._members = Members(self._group.members, consumers_of)
        self._meta: MetaManager | None = None
        self._consumers: GroupConsumers | None = None
        self._serving: Serving | None = None
        self._sending: Sending[Runs] | None = None
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        self._state, self._reason = EngineState.STARTING, ""
        self._here_at = time.monotonic()  # When a member was last seen running in this process.

    def start(self) -> None:
        """Starts the group, which then waits for members that do not run yet. An error in conf/ or in the environment becomes the group's
        state, until somebody corrects the cause.
        """
        self._keeper = threading.Thread(target=self._keep, name=f"group-{self.name}", daemon=True)
        self._try()
        self._keeper.start()

    def stop(self) -> None:
        """Stops serving consumers and saves their cursors."""
        self._stopping.set()
        if self._keeper is not None and self._keeper.is_alive():
            self._keeper.join()
        self._end(EngineState.STOPPED, "")

    @property
    def holds_lease(self) -> bool:
        """Always True, so that `launcher` does not replace this engine. A group's engine without the lease takes the lease itself when the
        group's members run in this process.
        """
        return True

    @property
    def consumers(self) -> GroupConsumers:
        """The consumers of the group. Raises NotStartedError if this process does not serve them, and LeaseLostError if another process
        does.
        """
        if self._consumers is None:
            raise NotStartedError(f"destination:{self.name} should start first: {self._reason or 'it is starting'}")
        self._lease.check()
        return self._consumers

    def status(self) -> EngineStatus:
        """Returns the current status of the group, without asking a source or a ledger store."""
        consumers, serving = self._consumers, self._serving
        statuses = consumers.statuses() if consumers is not None else ()
        troubles = [serving.trouble] if serving is not None and serving.trouble else []
        figures = figures_of(self._members, statuses)
        if self._state == EngineState.STARTING and self._reason and not any(each.missing for each in figures.members):
            troubles.append(self._reason)
        return EngineStatus(
            state=str(self._state),
            reason=self._reason,
            troubles=(*troubles, *figures.troubles(self._group.wait_seconds)),
            consumers=statuses,
            group=figures,
            updated_at_us=time.time_ns() // 1000,
        )

    # ── the group's thread ──

    def _keep(self) -> None:
        while not self._stopping.wait(STATUS_SECONDS):
            self._try()

    def _try(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._look()
        except Exception as error:
            # Errors of any kind are caught and logged, because nothing would try again if this thread ended.
            why = f"{type(error).__name__}: {error}"
            log.warning("group_not_served", destination=self.name, reason=why)
            if self._consumers is None:
                self._reason = why

    def _look(self) -> None:
        """Starts or stops serving, depending on the lease and the members. Saves cursors and reports the status."""
        missing = self._members.missing()
        if len(missing) < len(self._members.names):
            self._here_at = time.monotonic()
        try:
            if self._consumers is None:
                self._begin(missing)
            elif time.monotonic() - self._here_at > APART_SECONDS:
                self._end(EngineState.STARTING, _waits(missing))
            else:
                self._lease.check()
                self._go_on()
        except LeaseLostError as error:
            self._end(EngineState.STANDBY, str(error))
        except SluiceError as error:
            log.warning("group_not_served", destination=self.name, reason=str(error))
        self._report()

    def _begin(self, missing: dict[str, str]) -> None:
        try:
            self._check()
        except ConfigurationError as error:
            self._state, self._reason = EngineState.CONFIGURATION, str(error)
            return
        holder = self._lease.holder()
        if holder is not None and holder.held:
            self._state, self._reason = EngineState.STANDBY, _held_by(holder, self.name)
            return
        if missing:
            self._state, self._reason = EngineState.STARTING, _waits(missing)
            return
        if not self._lease.try_acquire():
            self._state, self._reason = EngineState.STANDBY, _held_by(self._lease.holder(), self.name)
            return
        try:
            self._open()
        except BaseException as error:
            self._end(EngineState.STARTING, str(error))
            raise

    def _check(self) -> None:
        """Raises ConfigurationError if a setting of the group is invalid."""
        if self._group.canal_server.port:
            address_of(self._group.canal_server)
        GroupEntries(display_of(self._group.canal_server))
        for broker in self._group.brokers:
            GroupMessages(broker)

    def _open(self) -> None:
        group = self._group
        self._meta = open_meta(self.directory, self._lease)
        self._meta.update(lambda ledger: ledger)  # Saves the ledger if it is new.
        forget_requested(self.directory, self._meta, None)
        self._members = Members(group.members, self._consumers_of)
        self._consumers = GroupConsumers(
            self.name,
            self._meta,
            self._members,
            group_filter=TableFilter(group.include, group.exclude),
            brokers={each.client_id: (name_of(each), each.filter) for each in group.brokers},
            wait_seconds=group.wait_seconds,
        )
        self._state, self._reason = EngineState.RUNNING, ""
        if group.canal_server.port:
            display = display_of(group.canal_server)
            self._serving = Serving(
                group.canal_server, self.name, lambda: self.consumers, lambda: GroupEntries(display)
            )
            self._serving.begin()
        self._sending = Sending(group.brokers, lambda: self.consumers, lambda broker: GroupMessages(broker).messages)
        self._sending.begin()
        log.info("group_begins", destination=self.name, members=group.members)

    def _go_on(self) -> None:
        if self._serving is not None:
            self._serving.again()
        if self._meta is not None:
            forget_requested(self.directory, self._meta, self._consumers)
        if self._consumers is not None:
            self._consumers.keep()

    def _end(self, state: EngineState, reason: str) -> None:
        """Stops serving, saves the cursors, and releases the lease."""
        was, self._state, self._reason = self._state, state, reason
        serving, sending, consumers, meta = self._serving, self._sending, self._consumers, self._meta
        self._serving = self._sending = self._consumers = self._meta = None
        if serving is not None:
            serving.end()
        if sending is not None:
            sending.end()
        if consumers is not None:
            log.info("group_ends", destination=self.name, state=str(state), before=str(was), reason=reason)
            try:
                consumers.close()
            except SluiceError as error:
                log.warning("consumer_cursors_not_written", destination=self.name, reason=str(error))
        self._members.close()
        if meta is not None:
            meta.close()
        self._lease.release()

    def _report(self) -> None:
        """Writes and reports the status. Does nothing in the state STANDBY, because the host that serves the group reports its status."""
        if self._state == EngineState.STANDBY:
            return
        status = self.status()
        try:
            write_status(self.directory / STATUS_FILE, status)
        except OSError as error:
            log.warning("status_not_written", destination=self.name, reason=str(error))
        self._on_status(status)


def _waits(missing: dict[str, str]) -> str:
    return "; ".join(f"the group waits for its member {name}: {why}" for name, why in sorted(missing.items()))


def _held_by(holder: Holder | None, name: str) -> str:
    who = f"process {holder.pid} on {holder.host}" if holder is not None else "another process"
    return f"{who} serves the group {name}; this process takes over when {who} ends"
