"""Simulates histories of Sluice with failovers, crashes and operators' mistakes, in one process and reproducibly by seed, and checks
Sluice's guarantees.

`judging.bench` is the entry point (`./sluice bench histories`, tests/histories). The production code runs unchanged: parser, scan, ring,
ledger, hand-out, service, ticks, settling, runs and merge. Its dependencies are simulated: servers (`source`), a lake with Delta's rules
(`lake`), Dagster's run storage (`run_storage`), and time. Each call to them can have a fault (`faults`).
"""
