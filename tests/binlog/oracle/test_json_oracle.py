"""Provides doubles whose text in JSON can be compared with the text that MySQL 8.0 prints. The file has no test."""

from __future__ import annotations

import math
import random
import struct


def doubles(count: int) -> list[float]:
    """Returns doubles of every size: random bits, random decimals, and numbers near those at which MySQL changes the form of the text."""
    chance = random.Random(7)  # noqa: S311 - test data
    bits = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(count)]
    plain = [round(chance.uniform(-1e6, 1e6), chance.randrange(7)) for _ in range(count)]
    sized = [
        float(f"{chance.choice(['', '-'])}{chance.randrange(1, 10**digits)}e{power}")
        for power in range(-25, 26)
        for digits in (1, 5, 17)
    ]
    chosen = [0.0, -0.0, 1e15, 1e16, 1e-14, 1e-15, 1e-16, *bits, *plain, *sized]
    return [number for number in chosen if math.isfinite(number) and abs(number) < 1e308]
