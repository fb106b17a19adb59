"""The newest stretch of a stream, read by any number of readers, each with a place of its own; nobody waits for them."""
