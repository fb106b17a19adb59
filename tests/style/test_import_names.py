"""Tests that all code imports the product's packages from `sluice`. Under a bare name, Python would load the same module a second time.

In a checkout, a bare name works, because the root is on the path for `tests` and `benchmarks`. In an installed package, a bare name fails.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess

import yaml

from tests.style.sources import NAMESPACE, PRODUCT, ROOT

NAMES = "|".join(PRODUCT)
BARE = (
    re.compile(rf"(?<![\w.])from (?:{NAMES})(?:\.\w+)* import\b"),
    re.compile(rf"(?<![\w.])(?<!from sluice )import (?:{NAMES})\b(?=$|[.,;]| as | +#)", re.MULTILINE),
    re.compile(rf"-m (?:{NAMES})\.\w+"),
)
QUOTED = re.compile(rf"[\"']({NAMES})\.(\w+)[\w.]*[\"']")
TABLE_OF_FOLDERS = "tests/style/test_arrows.py"


def bare_names(text: str) -> list[str]:
    """Returns the imports and names of modules, in code and in strings, that lack `sluice.`."""
    found = [match.group() for pattern in BARE for match in pattern.finditer(text)]
    return found + [match.group() for match in QUOTED.finditer(text) if is_module(match[1], match[2])]


def is_module(package: str, name: str) -> bool:
    path = ROOT / package / name
    return path.is_dir() or path.with_suffix(".py").exists()


def test_bare_names_are_found() -> None:
    for package in ("cdc_engine", "console"):
        for text in (f"from {package}.main import x", f"import {package}", f"python -m {package}.main"):
            assert bare_names(text), text
            assert not bare_names(text.replace(package, f"sluice.{package}")), text
    assert bare_names('"console' + '.main"')
    assert not bare_names('"equality' + '.json"'), "a file, not a module"


def test_packages_are_imported_from_sluice() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.splitlines() if name.endswith((".py", ".md", ".ipynb", ".yaml", ".yml"))]
    found = {
        name: bare
        for name in names
        if name != TABLE_OF_FOLDERS and (bare := bare_names((ROOT / name).read_text("utf-8")))
    }
    assert not found


def test_every_package_has_a_link() -> None:
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "src" / "sluice").iterdir() if path.is_symlink()}
    assert links == {name: f"../../{name}" for name in (*PRODUCT, "conf")}


def test_loggers_whose_lines_reach_dagster_are_ours() -> None:
    settings = yaml.safe_load((ROOT / "conf" / "dagster.yaml").read_text())
    names = settings["python_logs"]["managed_python_loggers"]
    assert names
    assert all(name.startswith(NAMESPACE) and importlib.util.find_spec(name) for name in names)
