"""Defines the subcommands of `sluice` with their options, one file per subject; `main` combines them. They import what they call when they
are called.
"""
