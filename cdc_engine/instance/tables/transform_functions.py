"""Imports the functions of transforms, and calls them with a time limit. Used by `value_policies`: in engines, in runs that read rows, and
in `sluice check`.

If conf/ does not set `version`, a digest of the module's file identifies the function, and the table's row rules include this digest. So
after an edit of the file, the next start of the engine imports the function again (`transform_modules`) and re-snapshots the table.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from sluice.cdc_engine.binlog.row_rules.transform import Transform, TransformFailedError
from sluice.cdc_engine.config.rows import TransformConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.tables.transform_modules import file_of, module_of

GROUP = "sluice.transforms"


def transform_of(name: str, settings: TransformConfig, destination: str = "") -> Transform:
    """Imports the function that conf/ names for a table's transform, and returns the transform. `name` is "database.table". `destination`
    is empty if the function is never called. Raises ConfigurationError if the function cannot be imported.
    """
    try:
        function = _loaded(settings.function)
        if not (settings.version or function.digest):
            raise ConfigurationError(
                f"{settings.function} has no source file, so Sluice cannot notice a change of the function: "
                "set `version` to a text, and change this text whenever the function's results change"
            )
    except ConfigurationError as error:
        raise ConfigurationError(f"tables.{name}.transform: {error}") from None
    return Transform(
        function=settings.function,
        reads=settings.reads,
        writes=settings.writes,
        drops=settings.drops,
        identity=f"version {settings.version}" if settings.version else function.digest,
        call=functools.partial(function.called, table=(destination, name), seconds_max=settings.seconds_max),
    )


@dataclasses.dataclass(eq=False)
class _Function:
    """The imported function of a transform. `digest` identifies the source file of the function's module, and is empty if the module has no
    file.

    `late` has the threads of calls that did not return in time, by (destination, "database.table"). While such a thread runs, the function
    is not called again for this table, so that there are never more threads than tables.
    """

    function: Callable[[pa.RecordBatch], Any]
    module: ModuleType
    digest: str
    late: dict[tuple[str, str], threading.Thread] = dataclasses.field(default_factory=dict)

    def called(self, rows: pa.RecordBatch, *, table: tuple[str, str], seconds_max: float) -> Any:
        """Calls the function in a thread, and returns its result. Raises TransformFailedError if the function fails or does not return
        within `seconds_max`, or if an earlier call for the table still runs.
        """
        late = self.late.get(table)
        if late is not None and late.is_alive():
            raise TransformFailedError(
                "an earlier call of the function for this table has not returned yet, and Sluice cannot end the call: correct the "
                "function; if the engine made the call, also restart the engine's process"
            )
        call = _Call(self.function, rows)
        thread = threading.Thread(target=call.run, name="transform", daemon=True)
        thread.start()
        thread.join(seconds_max)
        if thread.is_alive():
            self.late[table] = thread
            raise TransformFailedError(
                f"the function did not return within {seconds_max:g} s (`seconds_max`): correct the function, or raise `seconds_max`"
            )
        if call.error is not None:
            raise TransformFailedError(_raised(call.error, file_of(self.module)))
        return call.result


@dataclasses.dataclass(eq=False)
class _Call:
    """One call of a function in a thread, and its result or its error."""

    function: Callable[[pa.RecordBatch], Any]
    rows: pa.RecordBatch
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function(self.rows)
        except BaseException as error:  # Catches all errors, because the operator's function may raise any.
            self.error = error


def _raised(error: BaseException, file: str) -> str:
    """Returns the class of an error and the line that raised it. Leaves out the text of the error, because it may
    contain values of rows.
    """
    frames = traceback.extract_tb(error.__traceback__)
    last = ([each for each in frames if each.filename == file] or frames)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    return (
        f"the function raised {type(error).__name__} at {where} (the text of the error is not shown, because it "
        "may have values of rows)"
    )


_FUNCTIONS: dict[str, _Function] = {}
_IMPORTING = threading.Lock()


def _loaded(name: str) -> _Function:
    """Returns the function that conf/ names. If the function's file has changed since the last import, imports it again; existing
    transforms keep the old function.
    """
    with _IMPORTING:
        there, (module_name, path) = _FUNCTIONS.get(name), _located(name)
        module, digest = module_of(module_name)
        if there is None or there.module is not module:
            there = _FUNCTIONS[name] = _named(module, module_name, path, digest)
        return there


def _named(module: ModuleType, module_name: str, path: str, digest: str) -> _Function:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigurationError(f"the module {module_name} has no function {path}: correct `function`")
    return _Function(found, module, digest)


def _located(name: str) -> tuple[str, str]:
    """Returns the module and the function to which a name in conf/ refers. The name is `module:function`, or the name of an entry point."""
    module, colon, path = name.partition(":")
    if colon:
        return module, path
    found = {each.value: (each.module, each.attr) for each in entry_points(group=GROUP, name=name)}
    if len(found) != 1:
        installed = ", ".join(sorted({each.name for each in entry_points(group=GROUP)})) or "none"
        what = "is installed more than once" if found else "is not installed"
        raise ConfigurationError(
            f"{name} {what}; installed transforms: {installed} (entry points of the group {GROUP}): write `function` as "
            "`module:function`, or as the name of one installed transform"
        )
    return next(iter(found.values()))
