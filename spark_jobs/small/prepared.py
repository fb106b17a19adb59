"""Importing this module serializes the code of small merges for executors. The process from which runs are forked imports this module, so
that no run has to serialize the code.
"""

from sluice.spark_jobs.small.job import prepare

prepare()
