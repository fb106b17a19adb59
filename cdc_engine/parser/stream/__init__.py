"""The stream of a source: dumps are requested, framed, scanned, resumed after a lost connection, and watched."""
