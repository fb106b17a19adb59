"""Tests when Ctrl-C and SIGTERM that arrive in a block of `held_back` have their effect."""

from __future__ import annotations

import signal

import pytest

from sluice.console.stack.signals import heard, held_back


def receive_one(reached: list[str], error: Exception | None = None) -> None:
    """Receives SIGTERM in a block of `held_back`, which then may raise an error."""
    with heard():
        with held_back():
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the block")
            if error is not None:
                raise error
        reached.append("the code after the block")


@pytest.mark.found
@pytest.mark.parametrize("error", [None, OSError("the port is taken")])
def test_a_signal_has_its_effect_when_the_block_ends(error: Exception | None) -> None:
    """Defect 95: if a part of `sluice up --foreground` failed to start while SIGTERM arrived, the signal was lost, and the part was started
    again.
    """
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        receive_one(reached, error)
    assert reached == ["the end of the block"]
