"""The asset checks, which report stopped tables and engines and differences between lake and source, and the engine's observations."""
