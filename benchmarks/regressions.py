"""Names the figures of a benchmark that are worse than its record in benchmarks/results, for `./sluice bench compare`.

The last part of a figure's name says whether more is better. Figures of other programs, and settings of the benchmark, are not compared.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import show

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 0.10
# The first ending that fits decides.
MORE_IS_BETTER = {
    "_per_s": True,
    "_per_min": True,
    "_per_s_after_host_start": True,
    "_to_raw": True,
    "_to_java_connector": True,
    "_to_canal": True,
    "_to_mysql_replication": True,
    "_s": False,
    "_s_per_table": False,
    "_mb": False,
    "_percent": False,
    "_bytes_per_batch": False,
    "_seconds": False,
}
# The beginnings of the names of figures that are not compared: those of other programs, and rates that the benchmark itself sets.
NOT_OURS = ("raw_", "mysql_replication_", "java_connector_", "bare", "loop", "canal_", "wanted_", "transactions_per_s")
# A smaller difference is noise, even if it is a large share. For example, 20 ms more are no regression of a step that took 20 ms.
LEAST = {"_s": 0.05, "_percent": 0.2, "_mb": 10.0}


@dataclasses.dataclass(frozen=True)
class Regression:
    """A figure that is worse than in the record. `now` is None if the benchmark no longer measures it."""

    figure: str
    record: float
    now: float | None

    @property
    def percent(self) -> str:
        """The change in percent of the record, or "missing"."""
        return "missing" if self.now is None else f"{100 * (self.now / self.record - 1):+.0f} %"


def regressions(record: Any, now: Any, tolerance: float = TOLERANCE) -> list[Regression]:
    """Compares the JSON of a record with that of a new run of the same benchmark. Returns the figures that are worse by more than
    `tolerance`, a fraction of the record, and those that the new run lacks.
    """
    found = dict(_figures(now))
    return [
        Regression(name, before, after)
        for name, before in _figures(record)
        if _is_worse(name, before, after := found.get(name), tolerance)
    ]


def _is_worse(figure: str, before: float, after: float | None, tolerance: float) -> bool:
    ending = _ending(figure)
    if ending is None or before == 0:
        return False
    if after is None:
        return True
    loss = before - after if MORE_IS_BETTER[ending] else after - before
    return loss > max(tolerance * before, LEAST.get(ending, 0.0))


def _ending(figure: str) -> str | None:
    """Returns the ending of a figure's name that says whether more is better. Returns None for a figure that is not compared."""
    if any(part.startswith(NOT_OURS) for part in figure.split(".")):
        return None
    name = figure.rpartition(".")[2]
    return next((ending for ending in MORE_IS_BETTER if f"_{name}".endswith(ending)), None)


def _figures(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yields the numbers of a JSON value with their names, such as "modes.drain.loads.0.freshness_p50_s". `_names_of` names the
    elements of a list.
    """
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _figures(each, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list):
        for own_name, each in zip(_names_of(value), value, strict=True):
            yield from _figures(each, f"{name}.{own_name}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def _names_of(elements: list[Any]) -> list[str]:
    """Returns the first text of each element, such as the name of a process, because the order of the elements may change. Returns the
    numbers of the elements if some have no text, or the same text.
    """
    objects = [each for each in elements if isinstance(each, dict)]
    texts = [next((text for text in each.values() if isinstance(text, str)), "") for each in objects]
    named = len({*texts} - {""}) == len(elements)
    return texts if named else [str(number) for number in range(len(elements))]


def run(file: Path, record_file: Path | None) -> bool:
    """Prints the figures of `file` that are worse than those of the record. By default the record has the same file name in
    benchmarks/results. Returns whether no figure is worse. Raises OSError and ValueError if a file cannot be read.
    """
    screen = Console()
    record, now = (json.loads(path.read_text()) for path in (record_file or RESULTS / file.name, file))
    if record.get("machine") != now.get("machine"):
        screen.print(f"the machines differ: the record has {record.get('machine')}, this run has {now.get('machine')}")
    worse = regressions(record, now)
    if worse:
        show(
            f"worse than the record by more than {TOLERANCE:.0%}",
            [{"figure": each.figure, "record": each.record, "now": each.now, "change": each.percent} for each in worse],
        )
    else:
        screen.print(f"no figure is worse than the record by more than {TOLERANCE:.0%}")
    return not worse
