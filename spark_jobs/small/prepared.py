"""Writes the code of small merges for executors when it is imported. The process from which runs are forked imports it, so that no run
has to write the code.
"""

from sluice.spark_jobs.small.job import prepare

prepare()
