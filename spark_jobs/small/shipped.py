"""Serializes the code of small merges with cloudpickle, and sends it to the executors separately from the tables that a task merges.
`small.job` calls this module.

Executors need not have Sluice, so the code of the functions and classes is sent, which is half a megabyte. Serializing the code takes a
tenth of a second of CPU time, and loading it takes a third of that time. So each process serializes the code only once, and each Python
worker of Spark loads it only once. The tables of a batch are sent as values of the classes that the code contains.
"""

from __future__ import annotations

import functools
import hashlib
import io
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from sluice.batch_manifest import values
from sluice.spark_jobs import staged_batch, table_owner
from sluice.spark_jobs.small import merge
from sluice.spark_jobs.targets import report, shards

# The arguments of tasks contain objects of classes in these modules. The code of these classes is serialized once per process. If an
# argument contains an object of another class of Sluice, the code of that class is serialized again with each argument.
MODULES = (values, staged_batch, table_owner, merge, report, shards)

KEPT = "_sluice_"  # The names under which workers keep the code begin with this.
Batches = Iterator[Any]
Work = Callable[[Batches, Any], Batches]


def shipped(work: Work, argument: Any) -> Callable[[Batches], Batches]:
    """Returns a function for `mapInArrow`. It calls `work` with the batches of `mapInArrow` and with `argument`. `work` is a top-level
    function of a module.
    """
    code, name = code_of(work)
    return _loaded(name, code, _written(argument))


def forget() -> None:
    """Discards the serialized code, so that the next use serializes it again. Tests call this after they have replaced a function."""
    code_of.cache_clear()


@functools.cache
def code_of(work: Work) -> tuple[bytes, str]:
    """Returns the serialized code of `work` with the classes of MODULES, and the name under which a worker keeps the code. The name
    contains a digest of the code.

    For the code of other packages, only names are sent. The classes of deltalake's exceptions name a module that does not exist, so
    cloudpickle cannot send these classes. Code that runs on executors must therefore refer to the module, as in `exceptions.DeltaError`,
    and import no such class.
    """
    from pyspark import cloudpickle  # noqa: PLC0415

    _register()
    write: Any = cloudpickle.dumps  # pyspark has no types.
    code = write((work, _classes()))
    return code, f"{KEPT}{hashlib.blake2b(code, digest_size=16).hexdigest()}"


def _register() -> None:
    """Makes cloudpickle send the code of Sluice's packages, because executors may not have them."""
    from pyspark import cloudpickle  # noqa: PLC0415

    from sluice import batch_manifest, object_stores, secret_values, spark_jobs  # noqa: PLC0415

    register: Any = cloudpickle.register_pickle_by_value
    for package in (batch_manifest, object_stores, secret_values, spark_jobs):
        register(package)


@functools.cache
def _classes() -> dict[str, type]:
    """Returns the classes of MODULES by name."""
    found = (each for module in MODULES for each in vars(module).values() if isinstance(each, type))
    return {f"{each.__module__}.{each.__qualname__}": each for each in found if each.__module__.startswith("sluice.")}


def _written(argument: Any) -> bytes:
    """Serializes the argument of a task. Of a class of MODULES, the result has only the name, because `code_of` has serialized the code of
    the class.
    """
    from pyspark import cloudpickle  # noqa: PLC0415

    _register()
    names, buffer = {each: name for name, each in _classes().items()}, io.BytesIO()

    class Writer(cloudpickle.Pickler):
        def persistent_id(self, value: Any) -> str | None:
            return names.get(value) if isinstance(value, type) else None

    writer: Any = Writer
    writer(buffer).dump(argument)
    return buffer.getvalue()


def _loaded(name: str, code: bytes, argument: bytes) -> Callable[[Batches], Batches]:
    """Returns the function that an executor runs. The function loads the code, unless its worker process has loaded the same code before.
    Then it loads the argument.

    A worker keeps only the code that it has loaded last. Each process serializes the same functions to different bytes, and a worker may
    serve many processes, so keeping the code of each process would fill the worker's memory.
    """

    def run(batches: Batches) -> Batches:
        import io  # noqa: PLC0415  of the executor
        import pickle  # noqa: PLC0415

        kept: Any = sys.modules.get(name)
        if kept is None:
            kept = ModuleType(name)
            kept.work, kept.classes = pickle.loads(code)  # noqa: S301  the code of the run
            for other in [each for each in list(sys.modules) if each.startswith(KEPT)]:
                del sys.modules[other]
            sys.modules[name] = kept

        class Reader(pickle.Unpickler):
            def persistent_load(self, each: str) -> type:
                found: type = kept.classes[each]
                return found

        return kept.work(batches, Reader(io.BytesIO(argument)).load())  # type: ignore[no-any-return]

    return run
