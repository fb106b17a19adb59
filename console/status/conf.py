"""Adds the state of conf/ to the status: the files that are not in use, and the revision that was pulled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sluice.cdc_engine.config.remote.record import RemoteRecord, sentence
from sluice.cdc_engine.config.remote.record import problems as remote_problems
from sluice.console.status.report import StatusReport


def with_conf(report: StatusReport, refused: Mapping[str, str], remote: RemoteRecord | None = None) -> StatusReport:
    """Returns the report with a problem for each file of conf/ that is invalid and therefore not in use. `refused` maps the name of such a
    file to the reason. `remote` is the record of the pulled conf/, or None if conf/ is not pulled.
    """
    problems = [
        f"conf/{file} is not used, and the last valid content of this file stays in use: {why}"
        for file, why in sorted(refused.items())
    ]
    # Engines report an invalid file too. Leaves out the engines' messages about these files, so that no file is reported twice.
    remaining = [each for each in report.problems if not any(why in each for why in refused.values())]
    if remote is not None:
        report, problems = dataclasses.replace(report, conf=sentence(remote)), [*remote_problems(remote), *problems]
    return dataclasses.replace(report, problems=[*problems, *remaining])
