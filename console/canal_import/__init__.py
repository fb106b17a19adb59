"""Converts Canal's configuration to conf/, for `sluice import-canal`. Reports the settings that have no equivalent in Sluice."""
