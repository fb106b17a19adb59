"""Tests the Dagster part: rules alone, ticks and runs in this process with fakes, and Dagster's daemons, which are killed."""
