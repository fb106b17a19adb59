"""Runs `sluice up` as a program, with small processes instead of Dagster and Spark. Each of them answers when a file with its name exists.

The arguments are the folder that contains conf/, and "foreground" or nothing.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from sluice.cdc_engine.config import load_config
from sluice.console.stack import signals, stack
from sluice.console.stack.foreground import keep_up
from sluice.console.stack.parts import PartPort, ProcessPart, WarmUp
from sluice.console.stack.processes import ProcessRecord, StopStep, terminate
from sluice.console.stack.supervisor import StackPart
from sluice.console.toolchain.process import ChildProcess

FOLDER = Path(sys.argv[1])
AFTER: dict[str, tuple[str, ...]] = {
    stack.CODE_SERVER: (),
    stack.SPARK: (),
    stack.WEBSERVER: (stack.CODE_SERVER,),
    stack.DAEMON: (stack.WEBSERVER, stack.SPARK),
}


def sleeper(name: str) -> list[str]:
    return [sys.executable, "-c", f"import time; print('{name} is here', flush=True); time.sleep(600)"]


class FakeStack(stack.Stack):
    """Replaces the programs by fakes. Everything else is real."""

    def _parts(self) -> list[StackPart]:
        parts: list[StackPart] = [self._fake(name) for name in AFTER]
        wait = "import pathlib, time\nwhile not pathlib.Path('{}').exists(): time.sleep(0.05)"
        warm = [sys.executable, "-c", wait.format(FOLDER / "warm")]
        die_with_parent = self._options.die_with_parent
        log = FOLDER / "warm.log"
        return [*parts, WarmUp(warm, (stack.SPARK,), log, 60.0, self.say, die_with_parent=die_with_parent)]

    def _fake(self, name: str) -> ProcessPart:
        log = FOLDER / f"{name}.log"
        started = functools.partial(
            ChildProcess,
            sleeper(name),
            log,
            environment=self.environment(),
            die_with_parent=self._options.die_with_parent,
        )
        return ProcessPart(
            name,
            AFTER[name],
            self.file,
            log=log,
            start=lambda: self._children.setdefault(f"{name} {len(self._children)}", started()),
            question=lambda _: (FOLDER / name).exists,
            port=PartPort(0, ""),
            seconds_max=60.0,
        )

    def _end_code_server(self, record: ProcessRecord) -> None:
        """Does nothing, because the fake of the code server reacts only to SIGTERM."""

    def _steps(self, name: str) -> list[StopStep]:
        del name
        return [StopStep(terminate, 10.0)]


def main() -> None:
    foreground = sys.argv[2:] == ["foreground"]
    made = FakeStack(load_config(FOLDER / "conf"), FOLDER / "conf", say, stack.StackOptions(die_with_parent=foreground))
    made._spark.provide = lambda: None  # type: ignore[method-assign]
    with signals.heard():
        keep_up(made) if foreground else made.up()
    say("up is done")


def say(sentence: str) -> None:
    sys.stdout.write(sentence + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
