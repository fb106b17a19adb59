"""Tests the rules of the supervisor with fake parts: the order of starts, restarts of processes that ended, and when the supervisor gives
up.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.console.stack import supervisor
from sluice.console.stack.parts import PartPort, ProcessPart, WarmUp
from sluice.console.stack.processes import ProcessFile
from sluice.console.stack.signals import heard
from sluice.console.stack.supervisor import (
    FOREGROUND,
    UP,
    PartRecord,
    Patience,
    State,
    Supervisor,
    SupervisorStep,
    next_step,
)
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess

NO_WAIT = Patience(restarts_max=3, first_seconds=0.0)


@dataclasses.dataclass
class FakePart:
    """Simulates a part of the stack. It is ready at the `answer_after`-th check, unless its process ends before."""

    name: str
    log: Path
    after: tuple[str, ...] = ()
    once: bool = False
    seconds_max: float = 60.0
    answer_after: int = 1
    # How the next processes end, immediately after they begin.
    deaths: list[str] = dataclasses.field(default_factory=list)
    port_conflicts: int = 0  # How many of its deaths have this cause: another program uses its port at that moment.
    begun: int = 0
    how: str = ""
    requested: int = 0

    def begin(self) -> None:
        self.begun += 1
        self.requested = 0
        self.how = self.deaths.pop(0) if self.deaths else ""

    def end(self) -> None:
        self.how = self.how or "signal 9"

    def ended(self) -> str:
        return self.how

    def port_taken(self) -> bool:
        self.port_conflicts -= 1
        return self.port_conflicts >= 0

    def answers(self) -> bool:
        self.requested += 1
        return self.requested >= self.answer_after and not self.how


@pytest.fixture
def part(tmp_path: Path) -> Callable[..., FakePart]:
    log = tmp_path / "log"
    log.write_text("first\nOutOfMemoryError: heap\n")
    return lambda name, **facts: FakePart(name, log, **facts)


@pytest.fixture(autouse=True)
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.0)


@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advances the clock by a second at each look, so that waits end at once."""
    monkeypatch.setattr(supervisor, "_now", itertools.count(0.0, 1.0).__next__)


@pytest.mark.parametrize(
    ("state", "since", "ready", "ended", "answers", "once", "step"),
    [
        (State.WAITING, 0.0, (), "", False, False, SupervisorStep.NONE),
        (State.WAITING, 0.0, ("a",), "", False, False, SupervisorStep.BEGIN),
        (State.STARTING, 0.0, ("a",), "", False, False, SupervisorStep.NONE),
        (State.STARTING, 0.0, ("a",), "", True, False, SupervisorStep.READY),
        (State.STARTING, -61.0, ("a",), "", False, False, SupervisorStep.FAIL),
        (State.STARTING, 0.0, ("a",), "exit code 1", False, False, SupervisorStep.FAIL),
        (State.STARTING, 0.0, ("a",), "exit code 0", True, True, SupervisorStep.READY),
        (State.READY, -9999.0, ("a",), "", False, False, SupervisorStep.NONE),
        (State.READY, 0.0, (), "", False, False, SupervisorStep.NONE),
        (State.READY, 0.0, ("a",), "signal 9", True, False, SupervisorStep.FAIL),
        (State.READY, 0.0, ("a",), "exit code 0", True, True, SupervisorStep.NONE),
    ],
)
def test_fault_the_next_step_of_a_part(
    part: Callable[..., FakePart],
    *,
    state: State,
    since: float,
    ready: tuple[str, ...],
    ended: str,
    answers: bool,
    once: bool,
    step: SupervisorStep,
) -> None:
    kept = PartRecord(part("b", after=("a",), once=once), state, since)
    assert next_step(kept, 0.0, ready, ended, lambda: answers) is step


def test_fault_a_signal_during_a_start_is_handled_once_the_started_process_is_known(
    part: Callable[..., FakePart],
) -> None:
    spark = part("spark")
    whole: list[str] = []

    def begin() -> None:
        signal.raise_signal(signal.SIGINT)
        whole.append("the process is in the file")

    spark.begin = begin  # type: ignore[method-assign]
    watched = Supervisor([spark], print, UP)
    with heard(), pytest.raises(KeyboardInterrupt):
        watched.tick()
    assert whole
    assert watched.begun == ["spark"]


def test_parts_begin_in_their_order(part: Callable[..., FakePart]) -> None:
    parts = [part("daemon", after=("code", "spark")), part("code", answer_after=3), part("spark")]
    made = Supervisor(parts, print, UP)
    made.until_ready()
    assert made.begun == ["code", "spark", "daemon"]


def test_fault_spark_that_dies_while_it_warms_up_is_warmed_again(part: Callable[..., FakePart]) -> None:
    spark, warm = part("spark"), part("warm-up", after=("spark",), once=True, answer_after=10**9)
    said: list[str] = []
    made = Supervisor([spark, warm], said.append, UP)
    while not warm.requested:
        made.tick()
    spark.how = "signal 9"
    warm.answer_after = 1
    made.until_ready()
    assert (spark.begun, warm.begun) == (2, 2)
    assert "Spark ended (signal 9)" in said[2]
    assert "OutOfMemoryError" in said[2], "the last lines of its log"


def test_fault_a_code_server_that_dies_while_another_is_waited_for_is_started_again(
    part: Callable[..., FakePart],
) -> None:
    code, spark = part("code"), part("spark", answer_after=10)
    made = Supervisor([code, spark], print, UP)
    while spark.requested < 5:
        made.tick()
    code.how = "signal 9"
    made.until_ready()
    assert (code.begun, spark.begun) == (2, 1)


def test_fault_a_part_that_never_starts_is_named_at_once_by_up(part: Callable[..., FakePart]) -> None:
    made = Supervisor([part("code server", deaths=["exit code 1"] * 9)], print, UP)
    with pytest.raises(ServerError, match=r"The code server ended \(exit code 1\); .* ends: first \| OutOfMemoryError"):
        made.until_ready()
    assert made.begun == ["code server"]


def test_fault_a_port_that_another_program_took_in_the_last_moment_is_tried_again(
    part: Callable[..., FakePart],
) -> None:
    code = part("code server", deaths=["exit code 1"], port_conflicts=1)
    Supervisor([code], print, UP).until_ready()
    assert code.begun == 2


@pytest.mark.usefixtures("fast_clock")
def test_fault_a_port_that_another_program_keeps_is_given_up(part: Callable[..., FakePart]) -> None:
    code = part("code server", deaths=["exit code 1"] * 9, port_conflicts=9)
    with pytest.raises(ServerError, match="given up after"):
        Supervisor([code], print, UP).until_ready()


BINDS = (
    "import pathlib, socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1])));"
    "pathlib.Path(sys.argv[2]).touch(); s.accept()"
)


def test_fault_a_process_whose_port_another_program_took_is_started_again(tmp_path: Path) -> None:
    """Another program takes the port after it was found free and before the process binds it. Later this program ends."""
    port, log, bound = free_port(), tmp_path / "log", tmp_path / "bound"
    port_conflicts: list[socket.socket] = []

    def start() -> ChildProcess:
        if not port_conflicts:
            port_conflicts.append(socket.create_server((LOOPBACK, port)))
        return ChildProcess([sys.executable, "-c", BINDS, str(port), str(bound)], log)

    def say(sentence: str) -> None:
        if "starting it again" in sentence:
            port_conflicts[0].close()

    code = ProcessPart(
        "code server",
        (),
        ProcessFile(tmp_path / "processes.json"),
        log=log,
        start=start,
        question=lambda _: bound.exists,
        port=PartPort(port, "set another"),
        seconds_max=60.0,
    )
    made = Supervisor([code], say, UP)
    try:
        made.until_ready()
        assert made.begun == ["code server"] * 2
    finally:
        code.end()


def test_fault_a_warm_up_that_takes_too_long_is_ended_and_all_continues(
    part: Callable[..., FakePart], tmp_path: Path
) -> None:
    """A warm-up can hang on a busy machine. It only saves time later, so the start continues without it."""
    said, program = list[str](), [sys.executable, "-c", "import threading; threading.Event().wait()"]
    warm = WarmUp(program, ("spark",), tmp_path / "log", 0.0, said.append)
    made = Supervisor([part("spark"), warm], said.append, UP)
    made.until_ready()
    made.tick()
    assert made.is_ready()
    assert warm.ended(), "its process is gone"
    assert said == [
        "starting Spark",
        "starting the warm-up of Spark",
        "the warm-up of Spark was ended, because it took more than 0 s; Spark's first merges will be slow",
    ]


@pytest.mark.usefixtures("fast_clock")
@pytest.mark.parametrize("patience", [UP, NO_WAIT])
def test_fault_a_part_that_keeps_dying_is_given_up_by_name(part: Callable[..., FakePart], patience: Patience) -> None:
    dying = part("spark", deaths=["signal 9"] * 99)
    with pytest.raises(ServerError, match=rf"Spark ended .*\(given up after {patience.restarts_max + 1} failures"):
        Supervisor([dying], print, patience).until_ready()
    assert dying.begun == patience.restarts_max + 1


def test_fault_a_part_that_does_not_answer_is_ended_and_named(part: Callable[..., FakePart]) -> None:
    deaf = part("webserver", answer_after=10**9, seconds_max=-1.0)
    with pytest.raises(ServerError, match="The webserver did not answer within"):
        Supervisor([deaf], print, UP).until_ready()
    assert deaf.how == "signal 9"


def test_fault_what_ran_already_must_answer_and_is_begun_again_when_it_dies(part: Callable[..., FakePart]) -> None:
    found = part("code", answer_after=3)
    warm = part("warm-up", after=("code",), once=True)
    made = Supervisor([found, warm], print, UP, running=("code",))
    made.tick()
    assert not made.is_ready()
    found.how = "the exit code of the process is unknown"
    made.until_ready()
    assert made.begun == ["code", "warm-up"]


def test_waits_grow_and_a_steady_part_has_failed_for_the_first_time() -> None:
    assert [FOREGROUND.wait_seconds(failures) for failures in (1, 2, 3, 6, 9)] == [1, 2, 4, 32, 60]
    assert [UP.wait_seconds(failures) for failures in (1, 2, 6)] == [0.5, 1, 16]


def test_fault_failures_long_apart_are_no_reason_to_give_up(part: Callable[..., FakePart]) -> None:
    code = part("code")
    made = Supervisor([code], print, Patience(restarts_max=1, first_seconds=0.0, steady_seconds=0.0))
    for _ in range(5):
        made.until_ready()
        code.how = "signal 9"
        made.tick()
    assert code.begun == 5


@pytest.mark.found
def test_fault_a_spark_that_never_starts_is_named_as_spark(part: Callable[..., FakePart]) -> None:
    """Defect 29: messages spoke of "the spark"."""
    made = Supervisor([part("spark", deaths=["exit code 1"] * 9)], print, UP)
    with pytest.raises(ServerError, match=r"^Spark ended \(exit code 1\)"):
        made.until_ready()


@pytest.mark.found
@pytest.mark.usefixtures("fast_clock")
def test_fault_up_continues_after_several_kills_of_spark(part: Callable[..., FakePart]) -> None:
    """Defect 16: `up` gave up after three kills of Spark, and printed Spark's warnings as the reason."""
    said: list[str] = []
    spark = part("spark", deaths=["signal 9"] * 5)
    Supervisor([spark], said.append, UP).until_ready()
    assert spark.begun == 6
    failed = [line for line in said if "signal 9" in line]
    assert len(failed) == 5
    assert all("another program killed the process, or the kernel did so for lack of memory" in line for line in failed)
    assert all("the reason is not in its log" in line for line in failed)


@pytest.mark.found
def test_fault_a_part_that_ends_by_itself_gives_its_log_as_the_reason(part: Callable[..., FakePart]) -> None:
    """Test for defect 16: the log of a process gives the reason for its end, unless another program killed the process."""
    with pytest.raises(ServerError, match=r"Spark ended \(exit code 3\); .* ends: first \| OutOfMemoryError"):
        Supervisor([part("spark", deaths=["exit code 3"])], print, UP).until_ready()
