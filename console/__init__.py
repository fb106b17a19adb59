"""Contains the command line `sluice`: it sets up the machine, starts and stops the parts of Sluice, and shows their state."""
