"""Has the state of one history (sources, lake, Dagster, engine hosts, runs), and defines how each step changes it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
from dagster import DagsterRunStatus

from benchmarks.histories.engine_host import EngineHost
from benchmarks.histories.faults import Actor, Clock, Crash, Trouble
from benchmarks.histories.lake import Lake
from benchmarks.histories.run_engine import PlayedRunEngine
from benchmarks.histories.run_storage import PlayedInstance, PlayedRun
from benchmarks.histories.source import Endpoint, Server, changes_of
from benchmarks.histories.steps import Scenario, Step, Verb
from sluice.cdc_engine import destination_files
from sluice.cdc_engine.acts.position import SetPosition, set_position
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.position import Position
from sluice.orchestration import assets
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.orchestration.sensor.lake_watch import LakeWatch
from sluice.orchestration.sensor.runs import RunStore
from sluice.orchestration.sensor.tick import DestinationSensor, Ticker

MINUTE_SECONDS = 60
TABLES = ("shop.orders", "shop.audit")


class PlayedFiles:
    """Implements `ports.DestinationFiles` with production's functions. In contrast to production, a run never waits for the run lock."""

    head_of_line = staticmethod(destination_files.head_of_line)
    run_lock_held = staticmethod(destination_files.run_lock_held)
    run_lock_wanted = staticmethod(destination_files.run_lock_wanted)
    drain_lock = staticmethod(destination_files.drain_lock)
    drain_lock_held = staticmethod(destination_files.drain_lock_held)

    @staticmethod
    @contextlib.contextmanager
    def run_lock(directory: Path, timeout_seconds: float) -> Iterator[Callable[[], str]]:
        del timeout_seconds
        with destination_files.run_lock(directory, 0.0) as fence:
            yield fence


@dataclasses.dataclass
class Process:
    """A run's process, which may continue after Dagster has ended the run."""

    run: PlayedRun
    actor: Actor


@dataclasses.dataclass
class Installation:
    """A destination of one conf/, with its engine host, its sensor and its Dagster. `answer` is the reason in the last tick's result."""

    config: SluiceConfig
    destination: str
    endpoint: Endpoint
    instance: PlayedInstance
    host: EngineHost
    world: World
    started: bool = True
    cursor: str | None = None
    answer: str = ""
    ticker: Ticker | None = None
    processes: list[Process] = dataclasses.field(default_factory=list)
    kept_ledgers: list[str] = dataclasses.field(default_factory=list)
    acked: list[Position] = dataclasses.field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.config.destination_dir(self.destination)

    @property
    def job_name(self) -> str:
        return f"{assets.merge_name(self.destination)}_job"

    # ── the sensor ──

    def tick(self, *, lost: bool = False) -> None:
        """Runs one tick of the sensor, and then the work of the daemon. With `lost`, the result of the tick is lost."""
        if self.ticker is None:
            self.ticker = Ticker(self._line(), lambda: self.host)
        try:
            result = self.ticker.tick(RunStore(self.instance, self.job_name), self.cursor)  # type: ignore[arg-type]
        except Crash:
            self.die()
            return
        except RuntimeError as error:
            if "played" not in str(error):
                raise
            self.answer = f"the tick failed: {error}"
            return
        self.answer = str(result.skip_reason or "")
        if not lost:
            self.cursor = result.cursor
            for request in result.run_requests or ():
                self.instance.submit(request, self.job_name)

    def _line(self) -> DestinationSensor:
        return DestinationSensor(
            destination=self.destination,
            op_name=assets.merge_name(self.destination),
            tables=TABLES,
            run_lock_held=destination_files.run_lock_held,
            tick_seconds=0.0,
            lake=LakeWatch(self.config, self.destination, begin=lambda act: act()),
        )

    def die(self) -> None:
        self.host.die()
        self.ticker = None
        self.world.trouble.dying = False

    def read(self) -> None:
        try:
            self.host.advance()
        except Crash:
            self.die()

    # ── runs ──

    def start_run(self, run: PlayedRun) -> Process:
        self.instance.set_status(run, DagsterRunStatus.STARTED)
        process = Process(run, Actor(lambda: self._merge(run)))
        self.processes.append(process)
        process.actor.start()
        self.go_on(process)
        return process

    def go_on(self, process: Process) -> None:
        process.actor.resume()
        self.world.trouble.dying = False
        if process.actor.ended:
            self.processes.remove(process)

    def kill(self, process: Process) -> None:
        with self.world.trouble.death():
            process.actor.kill()
        self.processes.remove(process)

    def _merge(self, run: PlayedRun) -> None:
        """Executes a run with production's merge step, and records the result as Dagster does."""
        log = SimpleNamespace(info=lambda _: None)
        context: Any = SimpleNamespace(op_config=run.config, run=run, log=log, instance=self.instance)
        ports = Ports(
            host=lambda: self.host, files=PlayedFiles, merge=spark_merge, run_engine=lambda *_: PlayedRunEngine(self)
        )
        try:
            for _ in assets._merged(context, self.config, self.destination, ports):
                pass
        except dg.Failure as failure:
            self.instance.set_status(run, DagsterRunStatus.FAILURE, failure)
            return
        except RuntimeError as error:
            if "played" not in str(error):
                raise
            self.instance.set_status(run, DagsterRunStatus.FAILURE)
            return
        try:
            self.world.trouble.reach("end", lambda: None, RuntimeError)
        except RuntimeError:
            self.instance.set_status(run, DagsterRunStatus.FAILURE)
            return
        self.instance.set_status(run, DagsterRunStatus.SUCCESS)


class World:
    """The whole state of one history. The files of its destinations are in `folder`."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self.folder = scenario, folder
        self.clock, self.trouble, self.lake = Clock(), Trouble(), Lake()
        self._numbers = itertools.count(1)
        self._moments = itertools.count()
        self._ledgers = itertools.count(1)
        self.meddled = False  # True after an older ledger was restored.
        self.endpoints = {"first": self._endpoint("A", "B" if scenario.gtids else "")}
        if scenario.second == "shard":
            self.endpoints["second"] = self._endpoint("C", "")
        self.lines: list[Installation] = []
        self.refused = ""  # Says why production refused conf/ as a whole.

    def build(self) -> None:
        """Creates the installations. Production may refuse their configuration."""
        try:
            config = self._config("one", {"shop": "first", **({"other": "second"} if self._shard else {})})
        except (SluiceError, ValueError) as error:
            self.refused = str(error)
            config = self._config("one", {"shop": "first"})
        instance = PlayedInstance(self.clock, self.trouble)
        self._install(config, "shop", "first", instance)
        if self._shard:
            second = config if "other" in config.destinations else self._config("two", {"other": "second"})
            self._install(second, "other", "second", instance, started=False)
        if self.scenario.second == "copy":
            copied = self._config("two", {"shop": "first"})
            self._install(copied, "shop", "first", PlayedInstance(self.clock, self.trouble), started=False)

    @property
    def _shard(self) -> bool:
        return self.scenario.second == "shard"

    def _config(self, name: str, destinations: dict[str, str]) -> SluiceConfig:
        start = {"file": "binlog.000001"} if self.scenario.from_beginning else {}
        rest = {"include": r"shop\..*", "start": start, "store": {"kind": self.scenario.store}}
        return SluiceConfig.model_validate(
            {
                "data_dir": str(self.folder / name),
                "lake": "played://lake",  # The URL is not a local folder, so no files are synced to disk.
                "destinations": {
                    each: {"name": each, "source": {"host": host, "user": "u"}, **rest}
                    for each, host in destinations.items()
                },
            }
        )

    def _install(
        self, config: SluiceConfig, name: str, address: str, instance: PlayedInstance, *, started: bool = True
    ) -> None:
        host = EngineHost(self, config, name)
        endpoint = self.endpoints[address]
        self.lines.append(Installation(config, name, endpoint, instance, host, self, started=started))

    def _endpoint(self, first: str, standby: str) -> Endpoint:
        """Returns an endpoint whose server has executed one transaction without captured tables. With an empty GTID set, the engine could
        not recognize the server later.
        """
        endpoint = Endpoint(self._server(first), self._server(standby) if standby else None)
        endpoint.current.commit(())
        if endpoint.standby is not None:
            endpoint.standby.follow(endpoint.current)
        return endpoint

    def _server(self, name: str) -> Server:
        return Server(name, gtids=self.scenario.gtids and name != "C", now=self.now)

    def now(self) -> int:
        """Returns the time in seconds, plus a number that counts the calls, so that no two files of a server have the same time."""
        return int(self.clock.seconds) + next(self._moments)

    def next_number(self) -> int:
        return next(self._numbers)

    def born_id(self) -> str:
        """Returns the id of a new ledger. The id is unique within a history, and the same whenever the history is repeated."""
        return f"{next(self._ledgers):012x}"

    def keep_ledger(self, path: Path, text: str) -> None:
        """Replaces the durable write of meta.json. The write can have a fault."""
        line = next(each for each in self.lines if each.directory == path.parent)

        def write() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            line.kept_ledgers.append(text)

        self.trouble.reach("ledger", write, lambda: OSError(28, "No space left on device"))

    # ── steps ──

    def do(self, step: Step) -> None:
        """Executes a step. Does nothing if the step is impossible now."""
        line = self.lines[step.line if step.line < len(self.lines) else 0]
        if not line.started and step.verb != "take over" and step.verb not in OF_THE_SOURCE:
            return
        self.trouble.arm(step.faults)
        DEEDS[step.verb](self, line, step)
        self.trouble.arm()
        self.trouble.dying = False

    def meddle(self, done: bool) -> None:
        """Records that an older ledger was restored, if `done` is True."""
        self.meddled = self.meddled or done

    def close(self) -> None:
        """Ends every thread. Suppresses what the threads would still do."""
        for line in self.lines:
            for process in list(line.processes):
                line.kill(process)
            line.host.die()


Deed = Callable[[World, Installation, Step], object]


def _commit(world: World, line: Installation, step: Step) -> None:
    changes = changes_of(line.endpoint.current, step.deeds, world.next_number)
    if changes:
        line.endpoint.current.commit(changes)


def _reset(_: World, line: Installation, step: Step) -> None:
    """Resets the source's binlog. An open dump gets no notice, and receives nothing more."""
    line.endpoint.current.reset(keep_gtids=bool(step.number))


def _restore(_: World, line: Installation, step: Step) -> None:
    server = line.endpoint.current
    if server.backup is not None:
        server.restore(server.backup, new_uuid=bool(step.number))
        line.endpoint.closed += 1


def _follow(_: World, line: Installation, __: Step) -> None:
    if line.endpoint.standby is not None:
        line.endpoint.standby.follow(line.endpoint.current)


def _disconnect(_: World, line: Installation, __: Step) -> None:
    line.endpoint.closed += 1


def _read(_: World, line: Installation, step: Step) -> None:
    for _round in range(step.number + 1):
        line.read()


def _run(_: World, line: Installation, step: Step) -> None:
    """Continues a queued or stalled run: the oldest such run, or the newest."""
    queued = [run for run in line.instance.runs if _of(run, line) and run.status is DagsterRunStatus.QUEUED]
    candidates: list[PlayedRun | Process] = [*line.processes, *queued]
    if not candidates:
        return
    chosen = candidates[-1 if step.number else 0]
    if isinstance(chosen, Process):
        line.go_on(chosen)
    else:
        line.start_run(chosen)


def _of(run: PlayedRun, line: Installation) -> bool:
    return run.job_name == line.job_name


def flow(_: World, line: Installation, __: Step | None = None) -> None:
    """Runs ticks, reads and queued runs of a destination in two rounds without faults. Stalled runs stay stalled."""
    for _round in range(2):
        line.tick()
        for _read_round in range(6):
            line.read()
        line.tick()
        for run in list(line.instance.runs):
            if _of(run, line) and run.status is DagsterRunStatus.QUEUED:
                line.start_run(run)


def _stop(_: World, line: Installation, __: Step) -> None:
    line.host.stop()
    line.ticker = None


def _kill(_: World, line: Installation, __: Step) -> None:
    if line.processes:
        line.kill(line.processes[0])


def _end_run(_: World, line: Installation, step: Step) -> None:
    open_runs = [run for run in line.instance.runs if _of(run, line) and not run.is_finished]
    if open_runs:
        line.instance.set_status(open_runs[step.number % len(open_runs)], DagsterRunStatus.CANCELED)


def _again(_: World, line: Installation, step: Step) -> None:
    runs = [run for run in line.instance.runs if _of(run, line) and run.is_finished]
    if runs:
        run = runs[step.number % len(runs)]
        tags = {name: value for name, value in run.tags.items() if name.startswith("sluice/")}
        line.instance.add(run.job_name, tags, run.config)


def _lose_lock(_: World, line: Installation, __: Step) -> None:
    if line.processes:
        (line.directory / "run.lock").unlink(missing_ok=True)


def _wait(world: World, _: Installation, step: Step) -> None:
    world.clock.advance(step.number)
    if step.number >= MINUTE_SECONDS:
        for line in world.lines:
            line.host.look()


def _go_back(_: World, line: Installation, step: Step) -> None:
    """Executes `sluice position set` with an earlier position while the engine is stopped. If the command warns, the operator does not
    continue.
    """
    _stop(line.world, line, step)
    positions = _positions_read(line) if (line.directory / "meta.json").exists() else []
    if not positions:
        return
    position = positions[max(0, len(positions) - 1 - step.number)]
    act = SetPosition(
        directory=line.directory,
        find=lambda _: StartChoice(file=position.file, offset=position.offset),
        query_source=lambda: facts_of(line),
        confirm=lambda sentence: not any(word in sentence for word in ("never read", "is discarded", "are not read")),
        forget_history=lambda _: (line.directory / "schema.jsonl").unlink(missing_ok=True),
        lake_epoch=lambda: 0,
        take_over=lambda _ledger: None,
    )
    with contextlib.suppress(SluiceError):
        set_position(act)


def _positions_read(line: Installation) -> list[Position]:
    """Returns the earlier cursors of the ledger whose positions still exist in the source's binlog."""
    from sluice.cdc_engine.meta.ledger_record import ledger_from_text  # noqa: PLC0415

    current = line.endpoint.current
    ledgers = [ledger_from_text(text, line.destination) for text in line.kept_ledgers]
    cursors = [each.cursor for each in ledgers if each.cursor is not None and each.cursor.file]
    ends = {(file.name, group.end) for file in current.files for group in file.groups}
    return [each for each in cursors if each.server_uuid == current.uuid and (each.file, each.offset) in ends]


def facts_of(line: Installation) -> Any:
    """Returns the facts that the source reports, as the console reads them."""
    from benchmarks.histories.connection import PlayedConnection  # noqa: PLC0415
    from sluice.cdc_engine.instance.sources import source_of  # noqa: PLC0415
    from sluice.cdc_engine.parser.server_facts import read_facts  # noqa: PLC0415

    return read_facts(PlayedConnection(source_of(line.config.destinations[line.destination])))


def _lose_ledger(world: World, line: Installation, step: Step) -> None:
    _stop(world, line, step)
    (line.directory / "meta.json").unlink(missing_ok=True)


def _restore_ledger(world: World, line: Installation, step: Step) -> None:
    _stop(world, line, step)
    kept = line.kept_ledgers
    world.meddle(bool(kept))
    if kept:
        (line.directory / "meta.json").write_text(kept[max(0, len(kept) - 2 - step.number)])


def _path(line: Installation, step: Step) -> str:
    database, table = TABLES[step.number % 2].split(".")
    return line.config.table_path(line.destination, database, table)


def _take_over(_: World, line: Installation, __: Step) -> None:
    for each in line.world.lines[1:]:
        if not each.started:
            each.started = True
            each.tick()


OF_THE_SOURCE: frozenset[Verb] = frozenset(
    ("commit", "flush", "purge", "backup", "restore", "reset", "fail over", "follow", "rebuild", "disconnect", "wait")
)
DEEDS: dict[Verb, Deed] = {
    "commit": _commit,
    "flush": lambda _, line, __: line.endpoint.current.flush(),
    "purge": lambda _, line, __: line.endpoint.current.purge(),
    "backup": lambda _, line, __: line.endpoint.current.make_backup(),
    "restore": _restore,
    "reset": _reset,
    "fail over": lambda _, line, step: line.endpoint.fail_over(caught_up=bool(step.number)),
    "follow": _follow,
    "rebuild": lambda _, line, step: line.endpoint.rebuild_standby(new_uuid=bool(step.number)),
    "disconnect": _disconnect,
    "read": _read,
    "tick": lambda _, line, step: line.tick(lost=bool(step.number)),
    "run": _run,
    "flow": flow,
    "stop": _stop,
    "die": lambda _, line, __: line.die(),
    "kill": _kill,
    "end run": _end_run,
    "again": _again,
    "lose lock": _lose_lock,
    "wait": _wait,
    "go back": _go_back,
    "wipe runs": lambda _, line, __: line.instance.wipe(),
    "lose ledger": _lose_ledger,
    "restore ledger": _restore_ledger,
    "restore table": lambda world, line, step: world.lake.restore(_path(line, step), 1 + step.number // 2),
    "drop table": lambda world, line, step: world.lake.drop(_path(line, step)),
    "replace table": lambda world, line, step: world.lake.copy_over(_path(line, step)),
    "take over": _take_over,
}
