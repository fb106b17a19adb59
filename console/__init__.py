"""The command line: sets up the machine, starts and stops the parts of Sluice, and shows their state."""
