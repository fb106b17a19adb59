"""Serves the consumers of one group from the streams of its members, whose engines run in the same process. Used by `launcher`.

A group's engine reads no source and writes no lake. It takes the group's lease when all members run in this process, so the host that reads
the members also serves the group. Until then it waits, and its state says why. It releases the lease when no member runs in this process
any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ConfigurationError, LeaseLostError, NotStartedError, SluiceError
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.group.consumers import GroupConsumers
from sluice.cdc_engine.instance.consumers.group.members import Members
from sluice.cdc_engine.instance.consumers.group.served import check_settings, group_sending_of, group_serving_of
from sluice.cdc_engine.instance.consumers.group.status import figures_of
from sluice.cdc_engine.instance.consumers.sending import name_of
from sluice.cdc_engine.instance.consumers.subscriptions import forget_requested
from sluice.cdc_engine.instance.engine.lifecycle import Lifecycle
from sluice.cdc_engine.instance.parts import OpenParts
from sluice.cdc_engine.instance.status import EngineStatus
from sluice.cdc_engine.meta.managers import open_meta
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.states import EngineState

# If no member has run in this process for this long, the process releases the group's lease, so that another host can serve the group.
APART_SECONDS = 10.0

log = structlog.get_logger()


class GroupEngine(Lifecycle[OpenParts[GroupConsumers], GroupConsumers]):
    """The engine of one group. `consumers_of` returns the consumers of a member's engine in this process, or raises a SluiceError that says
    where the engine runs.
    """

    HELD = "{who} serves the group {name}; this process takes over when {who} ends"
    stops_first = True

    def __init__(
        self,
        config: SluiceConfig,
        name: str,
        consumers_of: Callable[[str], Consumers],
        *,
        on_status: Callable[[EngineStatus], None] = lambda _: None,
    ) -> None:
        super().__init__(name, config.destination_dir(name), on_status)
        self._group, self._consumers_of = config.groups[name], consumers_of
        self._members = Members(self._group.members, consumers_of)
        self._state = EngineState.STARTING
        self._here_at = time.monotonic()  # The monotonic time at which a member was last found in this process.

    def start(self) -> None:
        """Starts the group, which then waits for members that do not run yet. An error in conf/ or in the environment becomes the group's
        state, until somebody corrects the cause.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._report_once()
        self._begin_threads()

    def status(self) -> EngineStatus:
        parts, serving = self._parts, self._serving
        consumers = parts.consumers if parts is not None else None
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

    def _look(self) -> None:
        """Begins to serve the group's consumers if the settings are valid, no other process holds the lease, and all members run in this
        process. After that, checks the lease at each call, and ends if no member has run in this process for APART_SECONDS. The group's
        state says why the group is not served.
        """
        missing = self._members.missing()
        if len(missing) < len(self._members.names):
            self._here_at = time.monotonic()
        try:
            if self._parts is None:
                self._begin_with(missing)
            elif time.monotonic() - self._here_at > APART_SECONDS:
                raise NotStartedError(_waits(missing))
            else:
                super()._look()
        except LeaseLostError:
            raise
        except SluiceError as error:
            configuration = isinstance(error, ConfigurationError)
            self._wait(EngineState.CONFIGURATION if configuration else EngineState.STARTING, str(error))

    def _begin_with(self, missing: dict[str, str]) -> None:
        check_settings(self._group)
        holder = self._lease.holder()
        if holder is not None and holder.held:
            raise LeaseLostError(self._held_by(holder))
        if missing:
            raise NotStartedError(_waits(missing))
        self._begin()
        self._set_state(EngineState.RUNNING, "")
        log.info("group_begins", destination=self.name, members=self._group.members)

    def _lose(self, reason: str) -> None:
        self._wait(EngineState.STANDBY, reason)

    def _wait(self, state: EngineState, reason: str) -> None:
        self._end()
        if reason != self._reason:
            log.info("group_not_served", destination=self.name, state=state, reason=reason)
        self._set_state(state, reason)

    def _open(self) -> None:
        group = self._group
        meta = open_meta(self.directory, self._lease)
        self._members = Members(group.members, self._consumers_of)
        consumers = GroupConsumers(
            self.name,
            meta,
            self._members,
            group_filter=TableFilter(group.include, group.exclude),
            brokers={each.client_id: (name_of(each), each.filter) for each in group.brokers},
            wait_seconds=group.wait_seconds,
        )
        self._parts = OpenParts(meta=meta, consumers=consumers)
        meta.update(lambda ledger: ledger)  # Saves the ledger if it is new.
        forget_requested(self.directory, meta, None)
        self._serving = group_serving_of(group, lambda: self.consumers)
        self._sending = group_sending_of(group, lambda: self.consumers)

    def _stop_reading(self, *, lost: bool = False) -> None:
        del lost  # Has no effect, because only the engines of the members read sources.
        self._members.close()


def _waits(missing: dict[str, str]) -> str:
    return "; ".join(f"the group waits for its member {name}: {why}" for name, why in sorted(missing.items()))
