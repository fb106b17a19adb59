"""Imports the modules of transforms. Imports a module again after an edit, because an engine that an operator restarts may run in the same
process as before. Called by `transform_functions`.

All functions of a module come from the same import. A module is also imported again after an edit of another module that it imports from
its own package or folder.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from sluice.cdc_engine.errors import ConfigurationError

DIGEST_CHARS = 16

# Name of a module → the module, and the digest of its file at its import.
_MODULES: dict[str, tuple[ModuleType, str]] = {}
# The folders of installed packages and of the standard library.
_INSTALLED = {Path(sysconfig.get_path(each)) for each in ("stdlib", "platstdlib", "purelib", "platlib")}
# The time at which this module was imported, early in the process. A file that has not changed since then was imported with its present
# content.
_BEGUN = time.time()


def module_of(name: str) -> tuple[ModuleType, str]:
    """Imports a module, and returns the module with the digest of its file. If the module is already imported, imports it again only if its
    file, or the file of a module that it uses, has changed.
    """
    there = sys.modules.get(name)
    if there is not None:
        if _is_current(there) and all(map(_is_current, _used_by(there))):
            return there, _digest(file_of(there))
        _forget(there, *_used_by(there))
    known = dict(sys.modules)
    module, before = _imported(name)
    if stale := [each for each in _used_by(module) if known.get(each.__name__) is each and not _is_current(each)]:
        _forget(module, *stale)
        module, before = _imported(name)
    _MODULES.update({each.__name__: (each, _digest(file_of(each))) for each in _used_by(module)})
    _MODULES[name] = module, before
    return module, before


def _imported(name: str) -> tuple[ModuleType, str]:
    try:
        spec = importlib.util.find_spec(name)
        before = _digest(str(spec.origin)) if spec is not None and spec.has_location else ""
        module = importlib.import_module(name)
    except BaseException as error:  # Catches all errors, because the operator's module may raise any.
        raise ConfigurationError(
            f"the module {name} cannot be imported: {type(error).__name__}: {error}; correct the module. If it was not found, "
            f"install it in the environment of Sluice ({sys.prefix}), or name its folder in PYTHONPATH"
        ) from None
    if _digest(file_of(module)) != before:
        raise ConfigurationError(f"the file of the module {name} changed during its import: start Sluice again")
    return module, before


def _forget(*modules: ModuleType) -> None:
    """Removes modules from the caches of the import system, so that the next import reads their files again."""
    for each in modules:
        sys.modules.pop(each.__name__, None)
        _MODULES.pop(each.__name__, None)
        # Removes the cached .pyc file. Otherwise Python would use the .pyc file of the older source file if the new source file has the
        # same size and was written in the same second.
        with contextlib.suppress(OSError):
            Path(importlib.util.cache_from_source(file_of(each))).unlink()


def _used_by(module: ModuleType) -> list[ModuleType]:
    """Returns the modules that a module imports, directly or through other modules, from its own package or folder. Leaves out other
    installed packages and Sluice itself.
    """
    root = _root(module)
    found, left = dict[str, ModuleType](), [module]
    while root is not None and left:
        for each in _imports_of(left.pop()):
            if each is not module and each.__name__ not in found and _belongs(each, root):
                found[each.__name__] = each
                left.append(each)
    return list(found.values())


def _imports_of(module: ModuleType) -> Iterator[ModuleType]:
    """Yields the modules that the import statements of a module name. Leaves out modules that are not imported yet."""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    try:
        nodes = list(ast.walk(ast.parse(Path(file_of(module)).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        # Finds no imports: the module's file is not Python source, or somebody is editing it.
        return
    for node in nodes:
        names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                names = [base, *(f"{base}.{name}" for name in names)]
        yield from filter(None, map(sys.modules.get, names))


def _root(module: ModuleType) -> Path | None:
    """Returns the folder of the package that contains a module. For a module outside of packages, returns the module's folder, or None if
    packages are installed in that folder.
    """
    top, dot, _ = module.__name__.partition(".")
    if dot or hasattr(module, "__path__"):
        return next(map(Path, getattr(sys.modules.get(top), "__path__", ())), None)
    folder = Path(file_of(module)).parent
    return folder if file_of(module) and folder not in _INSTALLED else None


def _belongs(module: ModuleType, root: Path) -> bool:
    file = Path(file_of(module))
    installed = any(file.is_relative_to(each) and not root.is_relative_to(each) for each in _INSTALLED)
    return file.is_relative_to(root) and not installed and module.__name__.partition(".")[0] != "sluice"


def _is_current(module: ModuleType) -> bool:
    """Returns whether the file of an imported module is unchanged since the import. Returns True for a module without a file."""
    imported, before = _MODULES.get(module.__name__, (None, ""))
    if imported is module:
        return before == _digest(file_of(module))
    try:
        # The digest of the file at the import is unknown, because another part of the process imported the module. Counts it as current
        # only if the file has not changed since the process began.
        return not file_of(module) or Path(file_of(module)).stat().st_ctime < _BEGUN
    except OSError:
        return False


def file_of(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "")


def _digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:DIGEST_CHARS] if file else ""
    except OSError:
        return ""
