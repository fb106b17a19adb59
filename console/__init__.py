"""Implements the command line `sluice`, which sets up the machine, starts and stops the processes of Sluice, and shows their state."""
