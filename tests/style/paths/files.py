"""Checks and counts the files on the paths of a change, a chunk of a snapshot and a backfill.

`steps` lists the functions of each path. `mistakes` compares the lists with the sources, so that they cannot become outdated.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.style.paths.steps import PATHS, Step
from tests.style.sources import ROOT, Source

Function = ast.FunctionDef | ast.AsyncFunctionDef
PAGE = ROOT / "docs" / "architecture.md"
MARK, END = "<!-- path: {} -->", "<!-- end of the path -->"


def mistakes(steps: Sequence[Step]) -> list[str]:
    """Returns what is wrong with a path: functions that do not exist, and functions that do not call the next one."""
    found: list[str] = []
    for index, step in enumerate(steps):
        names = chain(step)
        found += [f"{step.file} has no function {name}" for name in names if function_of(step.file, name) is None]
        found += [
            f"{step.file}: {one} does not call {other}"
            for one, other in itertools.pairwise(names)
            if own_name(other) not in names_in(step.file, one)
        ]
        if not step.starts:
            found += _mistakes_of_call(steps[: index + 1], step)
    return found


def _mistakes_of_call(until: Sequence[Step], step: Step) -> Iterator[str]:
    caller = caller_of(until)
    if caller is None:
        yield f"{step.function} has no caller on the path"
        return
    called = own_name(chain(step)[0])
    if step.bound:
        file, name, value = bound_parts(step.bound)
        if value not in bound_values(file, name):
            yield f"{file} does not bind {name} to {value}"
        if value != called and value not in names_in(step.file, chain(step)[0]):
            yield f"{step.file}: {called} does not use {value}"
        called = name
    if not {called, f"_{called}"} & names_in(*caller):
        yield f"{caller[0]}: {caller[1]} does not call {called}"


def chain(step: Step) -> list[str]:
    return step.function.split(" > ")


def own_name(function: str) -> str:
    return function.rpartition(".")[2]


def bound_parts(bound: str) -> tuple[str, str, str]:
    file, _, pair = bound.partition(": ")
    name, _, value = pair.partition("=")
    return file, name, value


def caller_of(until: Sequence[Step]) -> tuple[str, str] | None:
    """Returns the file and the function that call the last of these steps."""
    *before, step = until
    if not step.caller:
        return (before[-1].file, chain(before[-1])[-1]) if before else None
    return next(((each.file, step.caller) for each in reversed(before) if step.caller in chain(each)), None)


@functools.cache
def _source(file: str) -> Source:
    return Source(ROOT, ROOT / file)


@functools.cache
def functions(file: str) -> dict[str, Function]:
    """Returns the functions of a file by their names, as in "Class.method" and "function.inner"."""
    found: dict[str, Function] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | Function):
                if isinstance(child, Function):
                    found[prefix + child.name] = child
                visit(child, f"{prefix}{child.name}.")
            else:
                visit(child, prefix)

    visit(_source(file).tree, "")
    return found


def function_of(file: str, name: str) -> Function | None:
    return functions(file).get(name) if (ROOT / file).is_file() else None


@functools.cache
def names_in(file: str, function: str) -> frozenset[str]:
    """Returns the names and attributes that a function uses."""
    found = function_of(file, function)
    nodes = ast.walk(found) if found is not None else ()
    return frozenset(_used(nodes))


def _used(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def bound_values(file: str, name: str) -> set[str]:
    """Returns the names that are used in the values of the keyword arguments `name` of a file."""
    keywords = (node for node in ast.walk(_source(file).tree) if isinstance(node, ast.keyword) and node.arg == name)
    return {used for each in keywords for used in _used(ast.walk(each.value))}


def package(file: str) -> str:
    """Returns the package of a file: its folder, at most two levels deep."""
    return "/".join(Path(file).parent.parts[:2])


def walk(steps: Sequence[Step]) -> list[str]:
    """Returns the files in the order in which a reader opens them. A reader who has read a function returns to its caller, which calls the
    next one.
    """
    opened: list[str] = []
    for index, step in enumerate(steps):
        caller = None if step.starts else caller_of(steps[: index + 1])
        opened += [caller[0]] if caller is not None else []
        opened.append(step.file)
    return [file for file, _ in itertools.groupby(opened)]


def files(steps: Sequence[Step]) -> list[str]:
    return list(dict.fromkeys(step.file for step in steps))


def returns(steps: Sequence[Step]) -> int:
    """Counts how often a value returns to a package that it has left. The packages of callers to which only a reader returns do
    not count.
    """
    visits = [each for each, _ in itertools.groupby(package(step.file) for step in steps)]
    return len(visits) - len(set(visits))


def figures() -> dict[str, str]:
    """Returns how many files each path has, how often it returns to a package, and how many files a reader opens in turn."""
    return {
        f"path of {name}": f"{len(files(steps))} files, {returns(steps)} returns to a package, {len(walk(steps))} files opened in turn"
        for name, steps in PATHS.items()
    }


def table(steps: Sequence[Step]) -> str:
    """Returns a path as a table in Markdown. It has a row for each file that the value passes, in order."""
    rows = []
    for file, group in itertools.groupby(steps, key=lambda step: step.file):
        here = list(group)
        rows.append(f"| `{file}` | {'; '.join(map(functions_cell, here))} | {'; '.join(map(cell, here))} |")
    return "\n".join(["| file | functions | what they do with the value |", "|---|---|---|", *rows])


def functions_cell(step: Step) -> str:
    """Returns the functions of a step in Markdown. The class is named once if consecutive functions are its methods."""
    shown, last = [], ""
    for function in chain(step):
        owner, _, name = function.rpartition(".")
        shown.append(f"`{name if owner == last else function}`")
        last = owner
    return " → ".join(shown)


def cell(step: Step) -> str:
    return f"*{step.starts}:* {step.does}" if step.starts else step.does


def with_tables(page: str) -> str:
    """Returns the page with the current table below the line `<!-- path: name -->` of each path."""
    for name, steps in PATHS.items():
        begin = page.index(MARK.format(name)) + len(MARK.format(name))
        end = page.index(END, begin)
        page = f"{page[:begin]}\n\n{table(steps)}\n\n{page[end:]}"
    return page
