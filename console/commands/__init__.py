"""Defines the subcommands of `sluice` with their options, one file per subject. `main` adds them to the command. A subcommand imports its
implementation only when it is called, so that `--help` stays quick.
"""
