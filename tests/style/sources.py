"""Finds and parses the product's source files for `tests.style.figures`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = (
    "cdc_engine",
    "orchestration",
    "spark_jobs",
    "equality",
    "consistent_snapshot",
    "object_stores",
    "batch_manifest",
    "secret_values",
    "canal_client",
    "console",
)
BENCHMARKS = "benchmarks"
NAMESPACE = "sluice."  # The prefix of each product package in imports.


@dataclasses.dataclass(frozen=True)
class Source:
    """A Python file below `root`, which is read and parsed once."""

    root: Path
    path: Path

    @functools.cached_property
    def text(self) -> str:
        return self.path.read_text()

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @functools.cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @property
    def name(self) -> str:
        """The path relative to the root, for messages."""
        return self.path.relative_to(self.root).as_posix()

    @property
    def folder(self) -> str:
        return Path(self.name).parent.as_posix()

    @property
    def module(self) -> str:
        """The name by which other files import this one."""
        name = self.name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        return f"{NAMESPACE}{name}" if name.split(".")[0] in PRODUCT else name

    @functools.cached_property
    def _all_nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Returns all syntax nodes of the given kinds."""
        return (node for node in self._all_nodes if isinstance(node, kinds))


def sources(root: Path, packages: tuple[str, ...] = PRODUCT) -> list[Source]:
    """Returns all Python files of the packages, sorted by path."""
    return [Source(root, path) for package in packages for path in sorted((root / package).rglob("*.py"))]


def checkout_sources(packages: tuple[str, ...] = PRODUCT) -> tuple[Source, ...]:
    """Returns all Python files of the packages in this checkout. They do not change while the tests run, so each is parsed once per
    process.
    """
    return tuple(source_of(source.path) for source in sources(ROOT, packages))


@functools.cache
def source_of(path: Path) -> Source:
    """Returns a file of this checkout, parsed once per process."""
    return Source(ROOT, path)
