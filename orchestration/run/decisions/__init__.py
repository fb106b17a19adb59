"""Contains the job for decisions that an operator makes in Dagster's UI."""
