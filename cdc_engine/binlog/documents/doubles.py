"""Kernels that find the shortest decimal number that a parser reads back as the same double. Called by `print_numbers`.

The algorithm is Schubfach (Raffaello Giulietti, The Schubfach way to render doubles). The algorithm scales the double, and the bounds of
the interval of numbers that round to the double, by a power of ten from a table of 128-bit numbers. Of the numbers with at most 17 digits
between the bounds, it takes the shortest; of equally short numbers, it takes the closest to the double. The algorithm is exact for every
double, so it needs no fallback.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel

FRACTION_BITS, EXPONENT_BIAS = 52, 1075
POWER_MIN, POWER_MAX = -292, 324  # The least and the greatest power of ten in POWERS.
# log10(2), log10(3/4) and log2(10) as fixed-point numbers that are exact enough for all exponents of doubles.
LOG10_2, LOG10_3_4, LOG10_SHIFT = 1262611, 524031, 22
LOG2_10, LOG2_SHIFT = 1741647, 19

ONE, TWO, FOUR, TEN, FORTY = (np.uint64(number) for number in (1, 2, 4, 10, 40))
HALF_BITS, LOW_HALF = np.uint64(32), np.uint64(0xFFFFFFFF)


def _scaled_power(power: int) -> int:
    """Returns 10 ** power, scaled by a power of two to exactly 128 bits and rounded up."""
    above, below = (10**power, 1) if power >= 0 else (1, 10**-power)
    shift = 128 + below.bit_length() - above.bit_length()
    for bits in (shift - 1, shift):
        scaled = -((-above << bits) // below) if bits >= 0 else -(-above // (below << -bits))
        if scaled >> 127:
            return scaled
    raise AssertionError(power)


def _powers() -> np.typing.NDArray[np.uint64]:
    """Returns the upper and lower 64 bits of each scaled power of ten from POWER_MIN to POWER_MAX."""
    words = [divmod(_scaled_power(power), 1 << 64) for power in range(POWER_MIN, POWER_MAX + 1)]
    return np.array(words, np.uint64)


POWERS = _powers()


@kernel
def upper_product(first: Integer, second: Integer) -> Integer:
    """Returns the upper 64 bits of the product of two uint64 numbers."""
    first_low, first_high = first & LOW_HALF, first >> HALF_BITS
    second_low, second_high = second & LOW_HALF, second >> HALF_BITS
    middle = first_high * second_low + (first_low * second_low >> HALF_BITS)
    other = first_low * second_high + (middle & LOW_HALF)
    return first_high * second_high + (middle >> HALF_BITS) + (other >> HALF_BITS)


@kernel
def scaled(high: Integer, low: Integer, factor: Integer) -> Integer:
    """Returns `factor` times the 128-bit number (high, low), shifted right by 128 bits and rounded to odd: the lowest bit of the result is
    also set if the dropped bits are not zero. `under` is the upper half of the dropped bits. It counts as zero if it is at most ONE,
    because the powers of ten in POWERS are rounded up.
    """
    under = high * factor + upper_product(low, factor)
    carried = np.uint64(under < upper_product(low, factor))
    return (upper_product(high, factor) + carried) | np.uint64(under > ONE)


@kernel
def shortest_digits(fraction: Integer, exponent: Integer) -> tuple[Integer, Integer]:
    """Returns (digits as a uint64, power of ten) of a double, which must be finite and not zero. `fraction`, `exponent`: the bits of the
    double's fraction and of its exponent, as int64. The digits may end with zeros.
    """
    significand, power = np.uint64(fraction), np.int64(1 - EXPONENT_BIAS)
    if exponent > 0:
        significand = np.uint64(fraction | np.int64(1) << FRACTION_BITS)
        power = np.int64(exponent - EXPONENT_BIAS)
        if -FRACTION_BITS <= power <= 0:
            whole = significand >> np.uint64(-power)
            if whole << np.uint64(-power) == significand:
                return whole, np.int64(0)
    odd = significand & ONE
    lower_is_closer = fraction == 0 and exponent > 1
    ten = (power * LOG10_2 - (LOG10_3_4 if lower_is_closer else 0)) >> LOG10_SHIFT
    shift = np.uint64(power + ((-ten * LOG2_10) >> LOG2_SHIFT) + 1)
    high, low = POWERS[-ten - POWER_MIN, 0], POWERS[-ten - POWER_MIN, 1]
    value = significand * FOUR
    least = scaled(high, low, (value - TWO + np.uint64(lower_is_closer)) << shift) + odd
    most = scaled(high, low, (value + TWO) << shift) - odd
    return closest(scaled(high, low, value << shift), least, most, ten)


@kernel
def closest(value: Integer, least: Integer, most: Integer, power: Integer) -> tuple[Integer, Integer]:
    """Returns (digits, power of ten) of the shortest number from `least` to `most`. Of equally short numbers, returns the closest to
    `value`. The arguments `value`, `least` and `most` are in units of a quarter of 10 ** power.
    """
    tens = value // FORTY
    if tens > np.uint64(0):
        above = tens * FORTY + FORTY <= most
        if (least <= tens * FORTY) != above:
            return tens + np.uint64(above), power + 1
    ones = value // FOUR
    above = ones * FOUR + FOUR <= most
    if (least <= ones * FOUR) != above:
        return ones + np.uint64(above), power
    middle = ones * FOUR + TWO
    return ones + np.uint64(value > middle or (value == middle and (ones & ONE) != np.uint64(0))), power
