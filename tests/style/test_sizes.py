"""Tests rules that keep the code readable: the sizes of files, functions and folders, names, comments, and where code prints."""

from __future__ import annotations

import ast
import functools
import re
import statistics
from pathlib import Path

from tests.style.sources import ROOT, source_of
from tests.style.test_arrows import module_name, modules

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
FOLDER_FILES_MAX = 15
# These patterns find comments that follow a closing parenthesis, and comments on a value for which a formatter added parentheses because
# of the comment.
HUNG_COMMENTS = (
    re.compile(r"^ *[\])}]+[,:]? +# (?!noqa|type: ignore|fmt).*", re.MULTILINE),
    re.compile(r"^( *)\S.* = \(\n +[^\n#]+  # (?!noqa|type: ignore).*\n\1\)$", re.MULTILINE),
)
OPENS_BY_SAYING = re.compile(r'(\s*#.*\n)*\s*r?"""(?!\s*""")')
FORBIDDEN_NAMES = {"utils", "helpers", "common", "util", "helper", "misc", "manager2"}


@functools.cache
def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = source_of(path).nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 2


def files() -> list[Path]:
    """Ours and those of the tests."""
    return [*modules(), *sorted((ROOT / "tests").rglob("*.py"))]


def test_a_file_is_short_and_opens_by_saying_what_it_is() -> None:
    long = [path for path in files() if path.read_text().count("\n") > FILE_LINES_MAX]
    assert not long, f"more than {FILE_LINES_MAX} lines"
    silent = [path for path in files() if path.read_text().strip() and not OPENS_BY_SAYING.match(path.read_text())]
    assert not silent, "does not say what it is"
    assert not [path for path in files() if path.stem in FORBIDDEN_NAMES]


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{path}: {function.name}"
        for path in modules()
        for function in functions(path)
        if lines_without_docstring(function) > FUNCTION_LINES_MAX
    ]
    assert not long, f"longer than {FUNCTION_LINES_MAX} lines"


def test_functions_and_files_are_small_in_the_middle() -> None:
    lengths = [lines_without_docstring(function) for path in modules() for function in functions(path)]
    assert statistics.median(lengths) <= 10
    assert statistics.median(path.read_text().count("\n") for path in modules()) <= 200


def test_a_comment_stands_above_its_line_not_after_a_parenthesis() -> None:
    hung = [
        f"{path}: {found.group().strip()}"
        for path in files()
        for pattern in HUNG_COMMENTS
        for found in pattern.finditer(path.read_text())
    ]
    assert not hung


def test_a_folder_has_few_files() -> None:
    for folder in {path.parent for path in files()}:
        names = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(names) <= FOLDER_FILES_MAX, (
            f"{folder} has {len(names)} files: move those that belong together into a folder within it"
        )


def test_nothing_prints_but_the_console() -> None:
    for path in modules():
        if module_name(path).startswith(("cdc_engine", "orchestration")):
            calls = [node.func for node in source_of(path).nodes(ast.Call) if isinstance(node, ast.Call)]
            assert not [called for called in calls if isinstance(called, ast.Name) and called.id == "print"], path
