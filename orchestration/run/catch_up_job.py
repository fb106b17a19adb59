"""Defines a job that succeeds when the lake has all changes that the source had when the run began. Schedules and jobs that read the lake
can wait for this job.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the types of `context` and `config` at
# runtime.

import functools
import time

import dagster as dg
from pydantic import Field

from sluice.cdc_engine.acts.catch_up import (
    LOOK_SECONDS,
    Waiting,
    end_of,
    reached_sentence,
    read_progress,
    wait_until_caught_up,
)
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.instance.sources import source_facts
from sluice.orchestration.base.one_destination import one_destination, with_destination
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.run.merge_run import as_failure

JOB = "catch_up"


class CatchUp(dg.Config):
    """The config of a run that waits until the lake has caught up. Dagster's launchpad shows its fields."""

    destination: str = ""  # `with_destination` replaces this field and accepts only names from conf/.
    seconds_max: float = Field(default=3600.0, ge=0.0, description="Seconds after which the run fails. 0: no limit.")


def catch_up_job(settings: SluiceConfig) -> dg.JobDefinition:
    """Returns the job that waits until the lake has caught up. A run of the job only waits, while engines and sensors merge and ack."""
    config_class = with_destination(CatchUp, settings.destinations)

    @dg.op(name="wait_until_caught_up", config_schema=config_class.to_config_schema().as_field())
    def wait(context: dg.OpExecutionContext) -> None:
        config, begun = config_class(**context.op_config), time.time()
        with as_failure():
            name = one_destination(config.destination, settings.destinations)
            end = end_of(source_facts(settings.destinations[name]))
            waiting = Waiting(
                destination=name,
                look=functools.partial(read_progress, settings.destination_dir(name), begun),
                say=context.log.info,
                pause=lambda: time.sleep(LOOK_SECONDS),
                seconds_max=config.seconds_max,
            )
            progress = wait_until_caught_up(waiting, end)
            if progress.stopped:
                raise MergeFailedError(reached_sentence(end, progress.stopped))
        context.add_output_metadata({"destination": name, "end": str(end), "seconds": time.time() - begun})

    @dg.job(
        name=JOB,
        executor_def=dg.in_process_executor,
        description="Waits until the lake has everything that the source had when the run began, and fails if a table "
        "has stopped. A job that starts after this run has succeeded reads a lake that is complete up to the start of this run.",
    )
    def job() -> None:
        wait()

    return job
