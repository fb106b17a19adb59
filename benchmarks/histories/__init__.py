"""A simulator of the promise: whole histories of Sluice, with failovers, crashes and mistakes of operators, in one process and by seed.

`bench` is the door (`./sluice bench histories`, tests/histories). Production runs as it is: parser, scan, ring, ledger, hand-out, service,
ticks, settling, runs and merge. What is played are the outsides: servers (`source`), a lake with Delta's rules (`lake`), Dagster's run
storage (`run_storage`), time, and a fault at any call to them (`faults`).
"""
