"""Finds folders that import each other, and files whose imports form a cycle, for `tests.style.figures`.

Imports within functions are included, because they hide a cycle from the interpreter but not from a reader.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.style.sources import Source

Graph = Mapping[str, frozenset[str]]


def file_graph(files: Sequence[Source]) -> Graph:
    """Returns, for each file, the files that it imports. Files are named by their paths."""
    paths = {source.module: source.name for source in files}
    return {source.name: frozenset(_imported(source, paths)) - {source.name} for source in files}


def _imported(source: Source, paths: Mapping[str, str]) -> Iterator[str]:
    for node in source.nodes(ast.Import, ast.ImportFrom):
        modules = _modules_of(node) if isinstance(node, ast.Import | ast.ImportFrom) else []
        for choices in modules:
            found = next((paths[module] for module in choices if module in paths), None)
            if found:
                yield found


def _modules_of(node: ast.Import | ast.ImportFrom) -> list[tuple[str, ...]]:
    """Returns, for each imported name, the modules that it may mean. It means the first one that exists."""
    if isinstance(node, ast.Import):
        return [(alias.name,) for alias in node.names]
    return [(f"{node.module}.{alias.name}", node.module or "") for alias in node.names]


def folded(graph: Graph, depth: int | None = None) -> Graph:
    """Returns the imports between folders instead of files. With `depth`, a folder is the first `depth` parts of a path."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, imported in graph.items():
        here = _folder(file, depth)
        found[here] |= {there for other in imported if (there := _folder(other, depth)) != here}
    return {folder: frozenset(others) for folder, others in found.items()}


def _folder(file: str, depth: int | None) -> str:
    return "/".join(file.split("/")[:-1][:depth])


def mutual_pairs(graph: Graph) -> list[tuple[str, str]]:
    """Returns the pairs that import each other, each pair once."""
    return sorted((one, other) for one in graph for other in graph[one] if one < other and one in graph.get(other, ()))


def cycles(graph: Graph) -> list[list[str]]:
    """Returns the groups of files in which every file reaches every other one by imports."""
    reached = {file: _reachable(graph, file) for file in graph}
    groups = {
        tuple(sorted({file, *(other for other in reached[file] if file in reached.get(other, ()))})) for file in graph
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def _reachable(graph: Graph, start: str) -> frozenset[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), frozenset()) - seen
        seen |= new
        waiting += new
    return frozenset(seen)
