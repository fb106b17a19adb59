"""Executes runs as another host would: `python -m tests.spark.stores.run_elsewhere`, with its own SLUICE_CONF, until its input ends.

It loads the code location as a run of Dagster does, and executes one run per line of JSON. A line has a `job` with the `config` and `tags`
of a run request, or the `assets` that somebody materializes. It prints one line with the result of each run.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import dagster as dg

from sluice.orchestration.run import snapshot_run


def done(definitions: dg.Definitions, wanted: dict[str, Any]) -> dict[str, Any]:
    job = definitions.resolve_job_def(wanted["job"])
    keys = [dg.AssetKey(path) for path in wanted.get("assets", ())]
    result = job.execute_in_process(
        run_config=wanted.get("config"),
        tags=wanted.get("tags"),
        asset_selection=keys or None,
        raise_on_error=False,
    )
    failures = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    keys_held = [each.asset_key for each in result.get_asset_observation_events()]
    held = [key.path[-1] for key in keys_held if key is not None]
    return {"done": result.success, "why": str(failures), "held": held}


def main() -> None:
    from sluice.orchestration.definitions import defs  # noqa: PLC0415  reads conf/, as each run does

    snapshot_run.WAIT_SECONDS = 0.0  # The caller tries again itself.
    tables = sorted(key.path[-1] for key in defs.resolve_asset_graph().materializable_asset_keys)
    say({"tables": tables})
    for line in sys.stdin:
        say(done(defs, json.loads(line)))


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
