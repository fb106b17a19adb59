"""Runs the decisions that an operator makes in Dagster's UI."""
