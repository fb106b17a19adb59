"""Computes CRC32 with carry-less multiplication, an instruction of x86 processors (PCLMULQDQ). Called by `checksum`.

The algorithm is that of Intel's paper "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ". Each step folds two units of 16
bytes: it replaces them by one unit with the same remainder modulo the CRC polynomial. The module `checksum` computes the CRC of the last
unit with its tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba as nb
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from sluice.cdc_engine.contracts import Bytes

UNIT_BYTES = 16
# How many units are folded in one step of the loop. The multiplications of one step do not depend on each other, so the processor overlaps
# them.
LANES = 4
FOLD_BYTES_MIN = UNIT_BYTES * LANES


def _power(exponent: int) -> int:
    """Returns x^exponent modulo the polynomial of CRC-32. The bits are reversed, as in zlib, and shifted left by one, as the instruction
    PCLMULQDQ requires.
    """
    remainder = 0x80000000  # The polynomial 1 with its bits reversed.
    for _ in range(exponent):
        remainder = (remainder >> 1) ^ (0xEDB88320 if remainder & 1 else 0)
    return remainder << 1


def _distance(bits: int) -> tuple[int, int]:
    """Returns the two factors by which the lower and the upper half of a 128-bit value are multiplied to append `bits` zero bits to the
    value, modulo the polynomial of CRC-32.
    """
    return _power(bits + 32), _power(bits - 32)


def _has_instruction() -> bool:
    settings: Any = nb.config  # The type stubs of numba lack its settings.
    return not settings.DISABLE_JIT and bool(binding.get_host_cpu_features().get("pclmul"))


AVAILABLE = _has_instruction()
_WORD, _BYTE = ir.IntType(64), ir.IntType(8)
_VECTOR = ir.VectorType(_WORD, 2)


def _typed(_context: Any, buffer: Any, _begin: Any, _units: Any, _crc: Any) -> Any:
    pair: Any = types.UniTuple
    return pair(types.uint64, 2)(buffer, types.int64, types.int64, types.uint32), _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    buffer, begin, units, crc = arguments
    data = context.make_array(signature.args[0])(context, builder, buffer).data
    start = builder.bitcast(builder.gep(builder.bitcast(data, _BYTE.as_pointer()), [begin]), _VECTOR.as_pointer())
    code = _Code(builder, start)
    first = builder.insert_element(
        ir.Constant(_VECTOR, [0, 0]), builder.zext(crc, _WORD), ir.Constant(ir.IntType(32), 0)
    )
    lanes = [code.unit(ir.Constant(_WORD, lane)) for lane in range(LANES)]
    lanes[0] = builder.xor(lanes[0], first)
    lanes, at = code.loop(lanes, ir.Constant(_WORD, LANES), units, _distance(128 * LANES))
    result = lanes[0]
    for lane in lanes[1:]:
        result = builder.xor(code.moved(result, _distance(128)), lane)
    (result,), _ = code.loop([result], at, units, _distance(128))
    halves = [builder.extract_element(result, ir.Constant(ir.IntType(32), half)) for half in range(2)]
    return context.make_tuple(builder, signature.return_type, halves)


class _Code:
    """Emits the LLVM instructions of the function `folded`, which the end of this module defines. `start` points to the first unit of 16
    bytes.
    """

    def __init__(self, builder: Any, start: Any) -> None:
        self._builder, self._start = builder, start
        kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _BYTE])
        declare: Any = cgutils.get_or_insert_function
        self._multiply = declare(builder.module, kind, "llvm.x86.pclmulqdq")

    def unit(self, index: Any) -> Any:
        return self._builder.load(self._builder.gep(self._start, [index]), align=1)

    def moved(self, value: Any, factors: tuple[int, int]) -> Any:
        """Emits instructions that append zero bits to `value`, modulo the polynomial of CRC-32. The instructions multiply each half of the
        value by the half's factor, and add the products (XOR). `factors` is the result of `_distance`.
        """
        by = ir.Constant(_VECTOR, list(factors))
        lower, upper = (
            self._builder.call(self._multiply, [value, by, ir.Constant(_BYTE, halves)]) for halves in (0x00, 0x11)
        )
        return self._builder.xor(lower, upper)

    def loop(self, lanes: list[Any], at: Any, units: Any, factors: tuple[int, int]) -> tuple[list[Any], Any]:
        """Emits a loop that folds len(lanes) units of 16 bytes per step, from the unit `at` on. The loop ends when fewer units are left.
        Returns the new values of `lanes`, and the index of the next unit.
        """
        builder, step = self._builder, ir.Constant(_WORD, len(lanes))
        before = builder.block
        head, body, after = (builder.append_basic_block(f"fold_{name}") for name in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        offset, values = builder.phi(_WORD), [builder.phi(_VECTOR) for _ in lanes]
        next_offset = builder.add(offset, step)
        builder.cbranch(builder.icmp_signed("<=", next_offset, units), body, after)
        builder.position_at_end(body)
        folded_values = [
            builder.xor(self.moved(value, factors), self.unit(builder.add(offset, ir.Constant(_WORD, lane))))
            for lane, value in enumerate(values)
        ]
        builder.branch(head)
        for phi, first, again in zip([offset, *values], [at, *lanes], [next_offset, *folded_values], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(again, body)
        builder.position_at_end(after)
        return values, offset


Folded = Callable[[Bytes, int, int, np.uint32], tuple[np.uint64, np.uint64]]
#: Takes (buffer, begin, units, crc) and folds `units` units of 16 bytes, at least LANES, from `begin` on, with `crc` as the initial CRC.
#: Returns one unit as (lower, upper) uint64. Modulo the polynomial of CRC-32, this unit has the same remainder as the folded units.
folded = cast("Folded", intrinsic(_typed))
