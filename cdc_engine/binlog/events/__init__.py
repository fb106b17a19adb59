"""Events one at a time: types, control events, statements, table maps, and what compressed events hold."""
