"""Implements `sluice import-canal`: converts Canal's configuration to conf/, and reports what Sluice has no equivalent for."""
