"""Simulates whole histories of Sluice, with failovers, crashes and operators' mistakes, in one process and reproducibly by seed, and
checks its guarantees.

`bench` is the entry point (`./sluice bench histories`, tests/histories). Production code runs unchanged: parser, scan, ring, ledger,
hand-out, service, ticks, settling, runs and merge. Simulated are its dependencies: servers (`source`), a lake with Delta's rules
(`lake`), Dagster's run storage (`run_storage`), time, and a fault at any call to them (`faults`).
"""
