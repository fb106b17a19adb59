"""Prints figures of the source code that show whether it becomes smaller and plainer: `python -m tests.style.figures [--json]`.

The figures come only from the source files. The number of files that a change passes on its way to the lake is not among them, because
only a reader, or a trace of a whole run, can find these files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.style.import_graph import cycles, file_graph, folded, mutual_pairs
from tests.style.paths import files as paths
from tests.style.replaced_words import count_in_code, count_in_pages, replaced_words
from tests.style.shape import (
    commands,
    configuration_fields,
    functions_named,
    most_arguments,
    shared_names,
    states,
)
from tests.style.sources import BENCHMARKS, ROOT, Source, sources


def figures(root: Path = ROOT) -> dict[str, Any]:
    """Returns all figures by name, as values that JSON can contain."""
    product = sources(root)
    benchmarks = sources(root, (BENCHMARKS,))
    return {
        **_of_product(product),
        **_of_imports([*product, *benchmarks]),
        **_of_words(root, product),
        **paths.figures(),
    }


def _of_product(product: Sequence[Source]) -> dict[str, Any]:
    members = states(product)
    arguments, most = most_arguments(product, kernels=False)
    kernel_arguments, most_in_kernel = most_arguments(product, kernels=True)
    return {
        "product lines": sum(source.text.count("\n") for source in product),
        "product files": len(product),
        "product lines by package": _lines_by_package(product),
        "classes that share a name": shared_names(product),
        "functions named ack": functions_named(product, "ack"),
        "most arguments of one function": f"{arguments} ({most})",
        "most arguments of one kernel": f"{kernel_arguments} ({most_in_kernel})",
        "configuration fields": configuration_fields(product),
        "commands": commands(product),
        "states": {**members, "all": sum(members.values())},
    }


def _lines_by_package(product: Sequence[Source]) -> dict[str, int]:
    lines: Counter[str] = Counter()
    for source in product:
        lines[source.name.split("/")[0]] += source.text.count("\n")
    return dict(lines)


def _of_imports(files: Sequence[Source]) -> dict[str, Any]:
    graph = file_graph(files)
    return {
        "packages that import each other": mutual_pairs(folded(graph, depth=1)),
        "folders that import each other": mutual_pairs(folded(graph)),
        "cycles of files": cycles(graph),
    }


def _of_words(root: Path, product: Sequence[Source]) -> dict[str, Any]:
    words = replaced_words(root)
    code = count_in_code(product, words)
    pages = count_in_pages(root, words)
    by_package = {
        package: {kind: sum(counts.values()) for kind, counts in kinds.items()} for package, kinds in code.items()
    }
    return {
        "replaced words by package": {**by_package, "pages": {"prose": sum(pages.values())}},
        "replaced words": {word: _uses(word, code, pages) for word in words},
        "replaced words by package and word": code,
    }


def _uses(word: str, code: dict[str, dict[str, Counter[str]]], pages: Counter[str]) -> dict[str, int]:
    kinds = {kind: sum(package[kind][word] for package in code.values()) for kind in ("identifiers", "prose")}
    return {**kinds, "pages": pages[word]}


DETAILS = frozenset({"replaced words by package and word"})  # Figures that are only in --json.


def as_text(found: dict[str, Any]) -> str:
    """Formats the figures as text. A list or a table of counts begins with its length, and its items follow, indented."""
    return "\n".join(line for name, value in found.items() if name not in DETAILS for line in _lines(name, value))


def _lines(name: str, value: object) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}: {len(value)}", *(f"    {key}: {_short(one)}" for key, one in value.items())]
    if isinstance(value, list):
        return [f"{name}: {len(value)}", *(f"    {_short(one)}" for one in value)]
    return [f"{name}: {value}"]


def _short(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.style.figures", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, with the words of each package")
    found = figures()
    text = json.dumps(found, indent=2) if parser.parse_args(arguments).json else as_text(found)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
