"""Defines the settings of conf/remote.yaml, and the record of a conf/ that was pulled from a git repository or an archive.
`keeping.remote_conf` pulls conf/.
"""
