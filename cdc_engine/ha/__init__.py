"""Has the locks that make sure that a destination has only one engine and one merging run, over all processes and hosts."""
