"""How a run reaches its engine: a door in the engine's process, and who calls there."""
