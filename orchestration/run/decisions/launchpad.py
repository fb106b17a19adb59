"""Writes the config of a decision as an operator finds it in Dagster's launchpad: what was shown as comments, and the fields to fill in.

Dagster computes a launchpad's default config when definitions load. So what waits now reaches the launchpad by its address, which may
contain a config. `waiting` shows these addresses."""

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
    """The launchpad of the job in Dagster's pages. `repository`, `location`: as Dagster calls them; empty in a run without pages."""

    repository: str = ""
    location: str = ""

    @classmethod
    def of(cls, run: dg.DagsterRun) -> Launchpad:
        """Returns the launchpad from which a run of the job was started."""
        origin = run.remote_job_origin
        if origin is None:
            return cls()
        found = origin.repository_origin
        return cls(repository=found.repository_name, location=found.code_location_origin.location_name)

    def link(self, title: str, config: str) -> str:
        """Returns as Markdown a link that opens the launchpad with a config; without pages the title alone."""
        if not self.location:
            return title
        where = urllib.parse.quote(f"{self.repository}@{self.location}", safe="@")
        # An address in Markdown ends at a parenthesis.
        given = urllib.parse.quote(config, safe="").replace("(", "%28").replace(")", "%29")
        return f"[{title}](/locations/{where}/jobs/{JOB}/playground/setup?config={given})"


def config_text(seen: Sequence[str], fields: Mapping[str, Any]) -> str:
    """Returns the YAML of a run's config. `seen`: what the operator decides about, as comments above it."""
    lines = [part for line in seen for part in line.splitlines()]
    comments = "".join(f"# {''.join(each if each.isprintable() else ' ' for each in line)}\n" for line in lines)
    config = {"ops": {STEP: {"config": dict(fields)}}}
    return comments + yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=1000)
