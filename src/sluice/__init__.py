"""Sluice replicates row changes of MySQL and MariaDB to Delta Lake tables. All packages of the product are below this one.

In a checkout, the packages are links to folders of the repository; in a wheel, they are folders. `SluiceComponent`, `build_definitions`,
`on_updates` and `TranslatedTable` are imported at their first use, because importing Dagster takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.orchestration.base.translation import TranslatedTable
    from sluice.orchestration.component.downstream import on_updates
    from sluice.orchestration.component.location import build_definitions
    from sluice.orchestration.component.sluice_component import SluiceComponent

__all__ = ["SluiceComponent", "TranslatedTable", "__version__", "build_definitions", "on_updates"]

__version__ = "0.1.0"

_LAZY = {
    "SluiceComponent": "sluice.orchestration.component.sluice_component",
    "TranslatedTable": "sluice.orchestration.base.translation",
    "build_definitions": "sluice.orchestration.component.location",
    "on_updates": "sluice.orchestration.component.downstream",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Also lists the names that are imported at their first use, because `dg` finds components by `dir()`."""
    return sorted({*globals(), *__all__})
