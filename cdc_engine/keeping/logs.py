"""How the processes that keep engines log: a line an event, to the standard output, whatever else in the process sets logging up."""

from __future__ import annotations

import logging
import sys

import structlog

OURS = ("cdc_engine", "orchestration")


def log_lines() -> None:
    """From now on. Dagster's command configures structlog to go by way of `logging`, and leaves what is not Dagster's without a form."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S"),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.dev.ConsoleRenderer(colors=False),
        ],
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(formatter)
    for name in OURS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
