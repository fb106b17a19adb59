"""Configures the log of processes that run engines: one line per event on standard output, even if Dagster has configured logging."""

from __future__ import annotations

import logging
import sys

import structlog

OURS = ("sluice.cdc_engine", "sluice.orchestration")


def log_lines() -> None:
    """Gives the loggers of Sluice's packages their own handler and format. Dagster's command redirects structlog to `logging`, where only
    Dagster's own events have a format.
    """
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
