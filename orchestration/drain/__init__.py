"""How a run that drains reaches its engine: a door in the engine's process, and who calls there."""
