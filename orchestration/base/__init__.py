"""Contains what the other packages of orchestration share: the ports with their fakes, the reference to a batch, the list of tables, and
the settings of a lake.
"""
