"""Implements `sluice import-canal`: converts Canal's configuration to conf/, and reports the settings that have no equivalent in Sluice."""
