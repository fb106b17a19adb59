"""Counts classes that share a name, arguments, configuration fields, commands and states, for `tests.style.figures`."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.style.sources import Source

Function = ast.FunctionDef | ast.AsyncFunctionDef
KERNEL_DECORATORS = ("kernel", "compiled", "njit")
SETTINGS_BASE = "BaseModel"
CLIENT = "canal_client/"  # This package can be shipped alone.
STATES_FILE = "cdc_engine/states.py"


def classes(files: Sequence[Source]) -> Iterator[tuple[Source, ast.ClassDef]]:
    """Yields every class with the file that defines it."""
    for source in files:
        for node in source.nodes(ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            yield source, node


def functions(files: Sequence[Source]) -> Iterator[tuple[Source, Function]]:
    """Yields every function and method with the file that defines it."""
    for source in files:
        for node in source.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
            assert isinstance(node, Function)
            yield source, node


def shared_names(files: Sequence[Source]) -> dict[str, list[str]]:
    """Returns each name that several classes have, with their files. `canal_client` is compared only with itself, because its names are
    Canal's.
    """
    found: dict[tuple[bool, str], list[str]] = defaultdict(list)
    for source, node in classes(files):
        found[source.name.startswith(CLIENT), node.name].append(source.name)
    return {name: where for (_, name), where in sorted(found.items()) if len(where) > 1}


def functions_named(files: Sequence[Source], name: str) -> int:
    """Returns how many functions have a name."""
    return sum(node.name == name for _, node in functions(files))


def most_arguments(files: Sequence[Source], *, kernels: bool) -> tuple[int, str]:
    """Returns the greatest number of arguments of a function, without `self`, and the function that has them."""
    counted = [
        (_arguments(node), f"{source.name}: {node.name}")
        for source, node in functions(files)
        if _is_kernel(node) is kernels
    ]
    return max(counted, default=(0, ""))


def _arguments(function: Function) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = sum(one is not None for one in (arguments.vararg, arguments.kwarg))
    return len(named) + starred - (bool(named) and named[0].arg in {"self", "cls"})


def _is_kernel(function: Function) -> bool:
    """Returns whether a function is compiled."""
    return any(_called_name(one) in KERNEL_DECORATORS for one in function.decorator_list)


def _called_name(decorator: ast.expr) -> str:
    """Returns `command` for `@app.command()`, and `kernel` for `@kernel`."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def configuration_fields(files: Sequence[Source]) -> int:
    """Returns the number of fields of all pydantic classes. An inherited field is counted once, in the class that declares it."""
    bases = {node.name: {_called_name(base) for base in node.bases} for _, node in classes(files)}
    settings = {SETTINGS_BASE}
    while grown := {name for name, parents in bases.items() if parents & settings} - settings:
        settings |= grown
    return sum(_fields(node) for _, node in classes(files) if node.name in settings)


def _fields(node: ast.ClassDef) -> int:
    annotated = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    return sum("ClassVar" not in ast.unparse(one.annotation) for one in annotated)


def commands(files: Sequence[Source]) -> int:
    """Returns how many functions are a typer command of the `sluice` program."""
    return sum(
        any(_called_name(one) == "command" for one in node.decorator_list)
        for source, node in functions(files)
        if source.folder.startswith("console")
    )


def states(files: Sequence[Source]) -> dict[str, int]:
    """Returns how many members each enumeration of states has, by the name of the enumeration."""
    found: Counter[str] = Counter()
    for source, node in classes(files):
        if source.name == STATES_FILE and node.name.endswith("State"):
            found[node.name] = sum(isinstance(one, ast.Assign) for one in node.body)
    return dict(found)
