"""`sluice bench`. The `sluice` command has it in a checkout; an installed package has no benchmarks."""
