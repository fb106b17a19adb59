"""Defines the subcommands of `sluice` with their options, one file per subject. `main` combines them. A command imports its implementation
only when it is called.
"""
