"""Converts Canal's configuration to conf/, for `sluice import-canal`, and reports the settings that Sluice has no equivalent for."""
