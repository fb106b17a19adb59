"""The command line: sets the machine up, starts and stops what Sluice consists of, and shows it."""
