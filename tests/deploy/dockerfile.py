"""Reads the stages and instructions of a Dockerfile, and the .dockerignore next to it. The tests and `build_root` use it."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import shlex
from pathlib import Path

CONTINUED = re.compile(r"\\\n")
VARIABLE = re.compile(r"\$(\w+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction, for example RUN with its command."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True)
class Stage:
    """The instructions that follow one FROM. `name` is the name after AS, or empty for the image itself."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]

    def all(self, name: str) -> list[str]:
        return [each.text for each in self.instructions if each.name == name]

    def assigned(self, name: str) -> dict[str, str]:
        """Returns the values that all ARG or ENV instructions set."""
        pairs = [pair.partition("=") for text in self.all(name) for pair in shlex.split(text)]
        return {key: value for key, _, value in pairs}

    @property
    def environment(self) -> dict[str, str]:
        """Returns the ENV of the image. References to an ARG are replaced by the default of the ARG."""
        arguments = self.assigned("ARG")
        return {
            key: VARIABLE.sub(lambda found: arguments[found[1]], value) for key, value in self.assigned("ENV").items()
        }


def read_dockerfile(file: Path) -> list[Stage]:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    stages: list[Stage] = []
    for line in CONTINUED.sub(" ", "\n".join(lines)).splitlines():
        name, _, text = line.strip().partition(" ")
        if name == "FROM":
            base, _, alias = text.partition(" AS ")
            stages.append(Stage(base, alias, ()))
        elif name:
            made = Instruction(name, " ".join(text.split()))
            stages[-1] = dataclasses.replace(stages[-1], instructions=(*stages[-1].instructions, made))
    return stages


def is_sent(path: str, ignore: Path) -> bool:
    """Returns whether a file of the checkout is in the build context. The last pattern that matches decides. Only the kinds of patterns
    that our file has are supported.
    """
    sent = True
    for line in ignore.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        parents = [path, *(str(each) for each in Path(path).parents)]
        if any(fnmatch.fnmatch(each, pattern) or fnmatch.fnmatch(f"/{each}", pattern) for each in parents):
            sent = line.startswith("!")
    return sent
