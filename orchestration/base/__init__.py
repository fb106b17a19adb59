"""Defines what the other packages of orchestration share: the ports and their fakes, the batch reference, the list of tables, and the
settings of a lake.
"""
