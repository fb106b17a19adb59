"""Defines what the other packages of orchestration share: the protocols of the parts of Sluice that orchestration calls (`ports`), the
reference by which a run names its batch, the list of tables, and the settings of a lake.
"""
