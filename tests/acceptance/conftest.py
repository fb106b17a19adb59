"""Provides the whole pipeline as a fixture of this folder, so that other tests need not import it."""

from tests.acceptance.fix_kills import kill_bench

__all__ = ["kill_bench"]
