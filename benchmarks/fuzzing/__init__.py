"""Damaged binlogs: a process that reads them is to fail by name, and nothing else."""
