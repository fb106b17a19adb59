"""Tests of Dagster around the engine: rules alone, ticks and runs in this process with fakes, and real daemons with real kills."""
