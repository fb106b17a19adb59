"""Tests that a batch reference is the same after each way in which it is passed, and that nothing else is accepted as a reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.orchestration.base.batch_reference import (
    BATCH_TAG,
    BatchReference,
    BatchReferenceError,
    changes_of,
    check_tags,
)
from sluice.orchestration.base.testing import FakeEngine

references = st.builds(
    BatchReference,
    destination=st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True),
    ledger=st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    batch=st.integers(0, 10**9),
    first_end=st.integers(0, (1 << 63) - 1),
    delivery=st.integers(0, 10**9),
)
GOOD = {
    "destination": "shop",
    "ledger": "0123456789ab",
    "batch": 5,
    "first_end": 4711,
    "delivery": 7,
}


@given(references)
def test_config_gives_the_same_reference_back(reference: BatchReference) -> None:
    assert BatchReference.from_config(reference.to_config()) == reference


@given(references, references)
def test_different_hand_outs_have_different_run_keys(one: BatchReference, other: BatchReference) -> None:
    def name(it: BatchReference) -> tuple[object, ...]:
        return (it.destination, it.ledger, it.batch, it.first_end, it.delivery)

    assert (one.run_key == other.run_key) == (name(one) == name(other))
    assert one.to_tags()[BATCH_TAG] == one.run_key


@pytest.mark.parametrize(
    "change",
    [
        {"destination": "Shop/../x"},
        {"destination": ""},
        {"ledger": ""},
        {"ledger": "another one."},
        {"batch": -1},
        {"batch": True},
        {"batch": "1"},
        {"first_end": -1},
        {"delivery": -1},
        {"delivery": 1.5},
        {"end_offset": 4711},
        {"password": "x"},
    ],
)
def test_garbage_is_refused_with_a_sentence(change: dict[str, Any]) -> None:
    with pytest.raises(BatchReferenceError, match=r"batch"):
        BatchReference.from_config({**GOOD, **change})


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), st.none() | st.text() | st.integers() | st.floats(), min_size=1))
def test_any_garbage_raises_only_its_own_error(change: dict[str, Any]) -> None:
    try:
        reference = BatchReference.from_config({**GOOD, **change})
    except BatchReferenceError:
        return
    assert BatchReference.from_config(reference.to_config()) == reference


def test_a_part_that_lacks_is_refused() -> None:
    for name in GOOD:
        with pytest.raises(BatchReferenceError, match="must have the fields"):
            BatchReference.from_config({key: value for key, value in GOOD.items() if key != name})


def test_tags_that_name_another_batch_are_refused() -> None:
    reference = BatchReference(**GOOD)  # type: ignore[arg-type]
    check_tags(reference, {})
    check_tags(reference, {**reference.to_tags(), "dagster/other": "x"})
    for tag in reference.to_tags():
        with pytest.raises(BatchReferenceError, match="nothing was written"):
            check_tags(reference, {**reference.to_tags(), tag: "another"})


def test_it_names_its_own_hand_out_only(tmp_path: Any) -> None:
    engine = FakeEngine(tmp_path)
    engine.capture(5)
    first = engine.hand_out(0)
    assert first is not None
    reference = BatchReference.of("shop", first)
    assert reference.names(first)
    assert reference.names(dataclasses.replace(first, end=first.start, path="staging/longer")), (
        "its end is not its name"
    )
    engine.rollback(first)
    second = engine.hand_out(0)
    assert second is not None
    assert second.end == first.end
    assert not reference.names(second)
    assert changes_of(reference.to_tags()) == changes_of(BatchReference.of("shop", second).to_tags())
