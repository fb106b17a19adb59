"""Simulates histories of Sluice with failovers, crashes and operators' mistakes, and checks Sluice's guarantees. The histories run in one
process, and a seed always gives the same history.

`judging.bench` is the entry point (`./sluice bench histories`, tests/histories). The production code runs unchanged: parser, scan, ring,
ledger, hand-out, service, ticks, settling, runs and merge. What the production code depends on is simulated: servers (`source`), a lake
with Delta's rules (`lake`), Dagster's run storage (`run_storage`), and time. Each call to one of these can fail (`faults`).
"""
