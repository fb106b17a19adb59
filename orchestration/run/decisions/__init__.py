"""Contains the job through which an operator makes decisions in Dagster's UI."""
