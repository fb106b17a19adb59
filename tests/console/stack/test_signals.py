"""Tests when Ctrl-C and SIGTERM that arrive in a block of `held_back` have their effect."""

from __future__ import annotations

import signal

import pytest

from sluice.console.stack.signals import heard, held_back


def test_a_signal_has_its_effect_when_the_block_ends() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt), heard():
        with held_back():
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the block")
        reached.append("the code after the block")
    assert reached == ["the end of the block"]


@pytest.mark.found
def test_a_signal_has_its_effect_if_the_block_raises_an_error() -> None:
    """Defect 95: if a part of `sluice up --foreground` failed to start while SIGTERM arrived, the signal was lost, and the part was started
    again.
    """
    with pytest.raises(KeyboardInterrupt), heard(), held_back():
        signal.raise_signal(signal.SIGTERM)
        raise OSError("the port is taken")
