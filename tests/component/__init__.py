"""Tests of Sluice in a code location of the user: the component, `build_definitions`, and the processes of its engines."""
