"""The command line `sluice`. It sets up the machine, starts and stops the processes of Sluice, and shows their state."""
