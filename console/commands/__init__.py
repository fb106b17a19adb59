"""Defines the subcommands of `sluice` with their options, one file per subject; `main` combines them. Each command imports its
implementation when it is called.
"""
