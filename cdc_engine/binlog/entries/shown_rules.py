"""Applies the row filters and masks of conf/ to entries.

A consumer gets the same rows as the lake. An update becomes a DELETE if only the before image meets the filter, and an INSERT if only the
after image meets the filter. So an event may become several entries or none. A hashed text or integer has the same digest for a consumer
and in the lake. Other hashed values may have another digest, because a consumer gets another text for them than the lake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import TypeUnsupportedError, type_of
from sluice.cdc_engine.binlog.entries.locate import BEFORE, EventFacts, Images
from sluice.cdc_engine.binlog.entries.numbers import SqlType
from sluice.cdc_engine.binlog.entries.texts import ColumnTexts, TextValues
from sluice.cdc_engine.binlog.row_rules.condition import Chosen
from sluice.cdc_engine.binlog.row_rules.masks import HASH, NULL
from sluice.cdc_engine.binlog.row_rules.rules import NO_RULES, BoundRules
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder, ValueLocations
from sluice.cdc_engine.binlog.rows.locate_diffs import ROW, SLOT
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.contracts import Block, Column, Int8s, Int64s, RowEventKind, TableVersion
from sluice.cdc_engine.errors import ConsumerStoppedError, TableStoppedError


class ShownRules:
    """The row filter and the masks for one table version. Raises ConsumerStoppedError if the filter or a mask does not fit the version, or
    if the table has a transform, because transforms apply only to the lake.
    """

    def __init__(self, version: TableVersion, columns: Sequence[Column], policy: ValuePolicy) -> None:
        if policy.rules.transform is not None:
            raise ConsumerStoppedError(
                f"conf/ transforms the rows of {version.name} ({policy.rules.transform.function}) for the "
                "lake only, so clients and brokers cannot get rows of this table: exclude the table in the consumer's filter"
            )
        corrected = [policy.corrected(column) for column in columns]
        try:
            types = [type_of(column, policy.zero_dates) for column in corrected]
            self._bound = BoundRules(policy.rules, version, corrected, types)
            self._decoder = self._condition_decoder(version, policy)
        except TypeUnsupportedError as error:
            raise ConsumerStoppedError(f"the rows of {version.name} cannot be filtered or masked: {error}") from None
        except TableStoppedError as error:
            raise ConsumerStoppedError(
                f"the rows of {version.name} cannot be sent to consumers: {error.reason}"
            ) from None
        self.columns = list(self._bound.shown_columns)
        self._masks = {
            slot: mask for slot, column in enumerate(columns) if (mask := self._bound.mask_of(column.name)) is not None
        }

    def texts(self, texts: Sequence[ColumnTexts]) -> list[ColumnTexts]:
        """Returns the columns' text conversions with the sqlTypes after masking: a hashed column is a VARCHAR."""
        kind = SqlType.VARCHAR
        return [
            dataclasses.replace(each, sql_type=kind, of_high=kind, of_null=kind)
            if slot in self._masks and self._masks[slot].kind == HASH
            else each
            for slot, each in enumerate(texts)
        ]

    def left(
        self, block: Block, chosen: Int64s, images: Images, facts: EventFacts
    ) -> tuple[Images, EventFacts, Int64s]:
        """Removes the images that do not meet the filter, and sets values with a `null` mask to NULL. `chosen`: the indices of row events
        in the block. `images`, `facts`: the images and facts of these events. Returns (the remaining images, the facts with one value per
        entry, the index in `chosen` of each entry's event).
        """
        images = self._without_nothing(images)
        if not self._bound.filters:
            return images, facts, np.arange(len(chosen))
        met = self._met(block, chosen, len(images.event))
        kinds, shown = _outcomes(facts.kinds[images.event], images.side, met)
        numbers = np.flatnonzero(shown)
        event, kinds = images.event[numbers], kinds[numbers]
        begins = np.ones(len(numbers), bool)
        begins[1:] = (np.diff(event) != 0) | (np.diff(kinds) != 0)
        return (
            Images(
                starts=np.ascontiguousarray(images.starts[:, numbers]),
                sizes=np.ascontiguousarray(images.sizes[:, numbers]),
                side=images.side[numbers],
                event=(np.cumsum(begins) - 1).astype(np.int32),
                differences=_renumbered(images.differences, shown),
            ),
            facts.split(event[begins], kinds[begins]),
            event[begins].astype(np.int64),
        )

    def masked(self, shown: Sequence[TextValues]) -> list[TextValues]:
        """Returns the texts of all columns with the masks applied. `shown` has the unmasked texts of each column."""
        return [
            TextValues(self._masks[slot].shown(each.array.cast(pa.string()))) if slot in self._masks else each
            for slot, each in enumerate(shown)
        ]

    def _condition_decoder(self, version: TableVersion, policy: ValuePolicy) -> RowDecoder | None:
        """Returns a decoder of the columns that the filter's condition reads, or None if the condition reads no column. The decoder treats
        the table as a table without a key, so that each update yields both images.
        """
        wanted = [index for index, each in enumerate(version.columns) if each.name.lower() in policy.rules.wanted]
        if not wanted:
            return None
        plain = dataclasses.replace(policy, rules=NO_RULES)
        return RowDecoder(dataclasses.replace(version, key=()), np.array(wanted, np.int32), ValueLocations(), plain)

    def _met(self, block: Block, chosen: Int64s, images: int) -> Chosen:
        if self._decoder is None:
            return np.ones(images, bool)
        try:
            met = [
                self._bound.met_by(self._decoder.columns, batch.columns[3:])
                for batch in self._decoder.chunks(block, np.ascontiguousarray(chosen))
            ]
        except TableStoppedError as error:
            raise ConsumerStoppedError(
                f"conf/ selects rows of {self._decoder.version.name}, and the condition cannot be evaluated: {error.reason}"
            ) from None
        return np.concatenate(met) if met else np.zeros(0, bool)

    def _without_nothing(self, images: Images) -> Images:
        """Returns the images with NULL instead of the values of all columns whose mask is `null`."""
        hidden = [slot for slot, mask in self._masks.items() if mask.kind == NULL]
        if not hidden:
            return images
        starts = images.starts.copy()
        for slot in hidden:
            starts[slot][starts[slot] >= 0] = -1
        differences = images.differences[:, ~np.isin(images.differences[SLOT], hidden)]
        return dataclasses.replace(images, starts=starts, differences=differences)


def _outcomes(kinds: Int8s, side: Int8s, met: Chosen) -> tuple[Int8s, Chosen]:
    """Applies the filter to updates: if only one image of an update meets the filter, the update becomes a DELETE or an INSERT. Returns
    (kind of each image's entry, copy of `met`). `met`: which images meet the filter. The before image of an update is directly before its
    after image.
    """
    kinds, shown = kinds.copy(), met.copy()
    before = np.flatnonzero((kinds == RowEventKind.UPDATE) & (side == BEFORE))
    was, is_now = met[before], met[before + 1]
    kinds[before[was & ~is_now]] = RowEventKind.DELETE
    kinds[before[~was & is_now] + 1] = RowEventKind.INSERT
    return kinds, shown


def _renumbered(differences: Int64s, shown: Chosen) -> Int64s:
    """Returns the columns of `Images.differences` that belong to the images that `shown` keeps, with the new indices of these images."""
    left = differences[:, shown[differences[ROW]]].copy()
    left[ROW] = (np.cumsum(shown) - 1)[left[ROW]]
    return left
