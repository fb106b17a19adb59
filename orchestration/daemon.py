"""Runs Dagster's daemon so that changes reach the lake sooner: the end of a tick wakes the run queue, and the launch of a run wakes the
sensors. A code server that answers again also wakes the sensors. The daemon does no work for assets without a freshness policy.

    python -m sluice.orchestration.daemon run -w workspace.yaml

The arguments are those of `dagster-daemon run`. Sluice also works with `dagster-daemon run`, but more slowly. Dagster's own daemon
evaluates sensors every five seconds, so a busy destination would merge at most one batch in five seconds.

When this daemon has launched a run, it evaluates the sensors again. This starts a tick, which waits until the run ends, settles the run's
batch and requests the next run. When a tick has ended, the daemon looks at the run queue, because the tick may have requested a run. When a
code server answers again after a restart, the daemon evaluates the sensors at once, because no tick ran while the code server did not
answer.

At the first start, Dagster stores a freshness state for each asset, even for thousands of assets without a policy. This daemon leaves out
the assets without a policy.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from dagster._core.definitions.freshness import FreshnessStateRecord
from dagster._core.remote_representation.grpc_server_state_subscriber import LocationStateSubscriber
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon import controller
from dagster._daemon.daemon import SensorDaemon, SpanMarker
from dagster._daemon.freshness import FreshnessDaemon
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._daemon.sensor import execute_sensor_iteration
from dagster._daemon.utils import DaemonErrorCapture

from sluice.orchestration.base.run_stamp import stamp_of_runs
from sluice.orchestration.server_ids import remember_server_ids

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetNode
    from dagster._core.instance import DagsterInstance
    from dagster._core.loader import LoadingContext
    from dagster._core.workspace.context import IWorkspaceProcessContext
    from dagster._daemon.daemon import DaemonIterator, DagsterDaemon

# Without a wake-up, the sensors are evaluated after this many seconds, as in Dagster's own loop.
SENSOR_SECONDS = 5.0
# While no run changes, the daemon inspects the queue of runs once in this many seconds. After a change, it inspects the queue at Dagster's
# interval.
QUEUE_SECONDS = 10.0
# Two evaluations of the sensors begin at least this many seconds apart. If an evaluation began earlier, Dagster would skip the sensors,
# because their minimum interval (`sensors.INTERVAL_SECONDS_MIN`, one second) would not be over.
AGAIN_SECONDS = 1.1
SHUTDOWN_LOOK_SECONDS = 0.5
FRESHNESS = "FRESHNESS_DAEMON"  # Dagster's type of the daemon that evaluates freshness policies.


class Wake:
    """An event that one daemon sets to wake another daemon, which waits for it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, seconds: float, shutdown: threading.Event) -> bool:
        """Waits until the event is set, `shutdown` is set, or `seconds` have passed. Returns whether the event was set, and clears it."""
        until = time.monotonic() + seconds
        while not shutdown.is_set() and (left := until - time.monotonic()) > 0:
            if self._event.wait(min(left, SHUTDOWN_LOOK_SECONDS)):
                break
        was_set = self._event.is_set()
        self._event.clear()
        return was_set


class WokenRunQueue(QueuedRunCoordinatorDaemon):
    """Launches queued runs when `wake` is set, when any run has changed, and at the latest after QUEUE_SECONDS. Once per interval of
    Dagster's run queue, finds out without a query whether a run has changed (`run_stamp`). After each launch, wakes the sensors.
    """

    def __init__(self, interval_seconds: float, wake: Wake, sensors: Wake) -> None:
        super().__init__(interval_seconds)
        self._wake, self._sensors = wake, sensors

    def core_loop(
        self, workspace_process_context: IWorkspaceProcessContext[Any], shutdown_event: threading.Event
    ) -> DaemonIterator:
        while True:
            stamp, due = stamp_of_runs(workspace_process_context.instance), time.monotonic() + QUEUE_SECONDS
            yield SpanMarker.START_SPAN
            try:
                for launched in self.run_iteration(workspace_process_context):  # Yields once per launched run.
                    self._sensors.set()
                    yield launched
            except Exception:
                yield _error(self._logger, "QueuedRunCoordinatorDaemon caught an error")
                stamp = None
            yield SpanMarker.END_SPAN
            while not self._wake.wait(self.interval_seconds, shutdown_event) and time.monotonic() < due:
                if stamp is None or stamp != stamp_of_runs(workspace_process_context.instance):
                    break
                yield None  # No run has changed, so the queue stays uninspected for another interval.
            yield None


class WokenSensors(SensorDaemon):
    """Evaluates sensors when `wake` is set, when the state of a code location changes, and every `SENSOR_SECONDS`. After each tick, wakes
    the run queue.
    """

    def __init__(self, settings: Any, wake: Wake, queue: Wake) -> None:
        super().__init__(settings)
        self._wake, self._queue = wake, queue
        self._ticks: dict[str, Future[Any]] = {}

    def core_loop(
        self, workspace_process_context: IWorkspaceProcessContext[Any], shutdown_event: threading.Event
    ) -> DaemonIterator:
        with _subscribed(workspace_process_context, self._wake):
            while True:
                begun = time.monotonic()
                yield SpanMarker.START_SPAN
                try:
                    yield from self._evaluate(workspace_process_context)
                except Exception:
                    yield _error(self._logger, "SensorDaemon caught an error")
                yield SpanMarker.END_SPAN
                if self._wake.wait(begun + SENSOR_SECONDS - time.monotonic(), shutdown_event):
                    shutdown_event.wait(max(0.0, begun + AGAIN_SECONDS - time.monotonic()))
                yield None

    def _evaluate(self, workspace: IWorkspaceProcessContext[Any]) -> DaemonIterator:
        before, begun = dict(self._ticks), time.monotonic()
        yield from execute_sensor_iteration(
            workspace,
            self._logger,
            threadpool_executor=self._threadpool_executor,
            submit_threadpool_executor=self._submit_threadpool_executor,
            sensor_tick_futures=self._ticks,
            instrument_elapsed=self.instrument_elapsed,
        )
        if self._threadpool_executor is None:  # Without a thread pool, the ticks ran in this thread and have ended.
            self._queue.set()
        for sensor, tick in self._ticks.items():
            if before.get(sensor) is not tick:
                tick.add_done_callback(lambda _: self._tick_ended(begun))

    def _tick_ended(self, begun: float) -> None:
        """Called when a tick has ended. `begun` is the time of the evaluation that started the tick. Wakes the run queue. If the tick took
        longer than SENSOR_SECONDS, also wakes the sensors: an evaluation during the tick has left out the tick's sensor, and the next
        evaluation may be up to SENSOR_SECONDS away.
        """
        self._queue.set()
        if time.monotonic() - begun > SENSOR_SECONDS:
            self._wake.set()


@contextlib.contextmanager
def _subscribed(workspace: IWorkspaceProcessContext[Any], wake: Wake) -> Iterator[None]:
    """Sets `wake` each time the state of a code location of the workspace changes while the body of the `with` statement runs. When `wake`
    is set, Dagster has already loaded the location again.
    """
    if not isinstance(workspace, WorkspaceProcessContext):
        yield
        return
    token = workspace.add_state_subscriber(LocationStateSubscriber(lambda _: wake.set()))
    try:
        yield
    finally:
        workspace.rm_state_subscriber(token)


class PoliciesOnly(FreshnessDaemon):
    """Evaluates the freshness only of assets that have a policy, or that had one when their state was stored."""

    async def _evaluate_asset(self, context: LoadingContext, node: BaseAssetNode) -> bool:
        if not node.freshness_policy_or_from_metadata and await FreshnessStateRecord.gen(context, node.key) is None:
            return False
        return await super()._evaluate_asset(context, node)


def _error(logger: Any, message: str) -> Any:
    return DaemonErrorCapture.process_exception(sys.exc_info(), logger=logger, log_message=message)


def wake_each_other() -> None:
    """Makes the sensor daemon and the run queue daemon of this process wake each other, and restricts the freshness daemon to assets with
    a policy.
    """
    create = controller.create_daemon_of_type
    sensors, queue = Wake(), Wake()

    def create_woken(daemon_type: str, instance: DagsterInstance) -> DagsterDaemon[Any]:
        if daemon_type == SensorDaemon.daemon_type():
            return WokenSensors(instance.get_sensor_settings(), sensors, queue)
        if daemon_type == QueuedRunCoordinatorDaemon.daemon_type():
            interval_seconds: Any = getattr(instance.run_coordinator, "dequeue_interval_seconds", 1)
            return WokenRunQueue(interval_seconds, queue, sensors)
        if daemon_type == FRESHNESS:
            return PoliciesOnly()
        return create(daemon_type, instance)

    controller.create_daemon_of_type = create_woken


def reload_only_broken_locations() -> None:
    """Makes the daemon of this process reload the code locations periodically only while one of them is not loaded.

    By default, Dagster reloads all locations every minute, and the code server and the daemon then spend time for each asset. This is not
    needed: each restart and each reload of the code server changes its id, and the daemon then loads the definitions. While a location is
    not loaded, Dagster tries again every minute.
    """
    check = controller.DagsterDaemonController.check_workspace_freshness

    def check_broken(self: controller.DagsterDaemonController, last_workspace_update_time: float) -> float:
        entries = self._workspace_process_context.create_request_context().get_code_location_entries()
        if all(each.code_location is not None for each in entries.values()):
            return time.time()
        return check(self, last_workspace_update_time)

    controller.DagsterDaemonController.check_workspace_freshness = check_broken  # type: ignore[method-assign]


def main() -> None:
    """Runs the daemon until a signal ends it."""
    from dagster._daemon.cli import main as run  # noqa: PLC0415

    wake_each_other()
    remember_server_ids()
    reload_only_broken_locations()
    run()


if __name__ == "__main__":
    main()
