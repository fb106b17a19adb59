"""Tests of Dagster around the engine: rules alone, ticks and runs in process on fakes, and real daemons with real kills."""
