"""Writes the config of a decision for Dagster's launchpad: the facts as comments, and the fields that the operator fills in.

Dagster computes a launchpad's default config when it loads the definitions, and no pending decision is known then. But the address of a
launchpad may contain a config, so `waiting` shows such addresses as links.
"""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import dagster as dg

STEP = "act_on_decision"
JOB = "decide"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launchpad:
    """The launchpad page of the job `decide`. `repository` and `location` are the names of the code location in Dagster. Both names are
    empty in a run that no code location launched.
    """

    repository: str = ""
    location: str = ""

    @classmethod
    def of(cls, run: dg.DagsterRun) -> Launchpad:
        """Returns the launchpad of the code location from which `run` was launched."""
        origin = run.remote_job_origin
        if origin is None:
            return cls()
        found = origin.repository_origin
        return cls(repository=found.repository_name, location=found.code_location_origin.location_name)

    def link(self, title: str, config: str) -> str:
        """Returns a Markdown link that opens the launchpad with `config`, or `title` alone if the location is unknown."""
        if not self.location:
            return title
        where = urllib.parse.quote(f"{self.repository}@{self.location}", safe="@")
        # In Markdown, a closing parenthesis ends the address of a link, so parentheses are escaped.
        given = urllib.parse.quote(config, safe="").replace("(", "%28").replace(")", "%29")
        return f"[{title}](/locations/{where}/jobs/{JOB}/playground/setup?config={given})"


def config_text(seen: Sequence[str], fields: Mapping[str, Any]) -> str:
    """Returns the YAML of a run's config. `seen` has the facts for the decision, which become comments above the config."""
    lines = [part for line in seen for part in line.splitlines()]
    comments = "".join(f"# {''.join(each if each.isprintable() else ' ' for each in line)}\n" for line in lines)
    config = {"ops": {STEP: {"config": dict(fields)}}}
    return comments + yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=1000)
