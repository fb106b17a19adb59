"""One destination's engine: the one place where the rooms are joined, started and stopped."""
