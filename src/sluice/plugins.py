"""Finds the entry points that installed packages register in a group. Handlers and the settings of brokers use this module."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from sluice.package_files import checkout


@dataclasses.dataclass(frozen=True)
class PluginGroup:
    """A group of entry points: `name` is the name by which packages register entry points in the group. `what` says what an entry point of
    the group is, for example "handler", and is used in messages.
    """

    name: str
    what: str

    def names(self) -> list[str]:
        """Returns the registered names, sorted."""
        return sorted({each.name for each in self._registered()})

    def problem_of(self, name: str) -> str:
        """Returns why a name in conf/ cannot be used, or "" if exactly one package registers the name. The sentence lists the registered
        names.
        """
        found = self._named(name)
        if not found:
            return (
                f"there is no {self.what} {name!r}; installed: {', '.join(self.names()) or 'none'} (entry points of the "
                f"group {self.name} in Sluice's Python environment)"
            )
        if len({each.value for each in found}) > 1:
            packages = ", ".join(sorted(described(each) for each in found))
            return f"the {self.what} {name!r} is installed more than once: {packages}; remove all of these packages except one"
        return ""

    def entry(self, name: str) -> EntryPoint:
        """Returns the entry point of a name for which `problem_of` returned an empty text."""
        return self._named(name)[0]

    def _named(self, name: str) -> list[EntryPoint]:
        return [each for each in self._registered() if each.name == name]

    def _registered(self) -> list[EntryPoint]:
        return [*entry_points(group=self.name), *_of_checkout(checkout(), self.name)]


def described(entry: EntryPoint) -> str:
    """Returns the object that an entry point names, and the package that registers it, for messages. An entry point of a checkout has no
    package, so the text names sluice.
    """
    return f"{entry.value} of {entry.dist.name if entry.dist is not None else 'sluice'}"


@functools.cache
def _of_checkout(root: Path | None, group: str) -> tuple[EntryPoint, ...]:
    """Returns the entry points of a group that pyproject.toml of the checkout `root` defines. The file must be read, because a checkout is
    not installed and therefore registers no entry points. Returns () if `root` is None, because an installed package has registered its
    entry points.
    """
    if root is None:
        return ()
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    registered = project["entry-points"].get(group, {})
    return tuple(EntryPoint(name, value, group) for name, value in registered.items())
