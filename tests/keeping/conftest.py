"""Fixtures of a conf/ that is pulled."""

from tests.keeping.fix_remote_conf import conf, repository, source

__all__ = ["conf", "repository", "source"]
