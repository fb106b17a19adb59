"""What a statement's meaning may hang on that neither the statement nor the history says. `effects` asks, `history` finds out. Pure.

An answer may take a look at files or at the server. So the rules take none themselves: they return the first question that has no answer
yet, and begin anew once it has one.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from cdc_engine.table_meta.change.policy import PLANS, Policy
from cdc_engine.table_meta.history.kept.known_schemas import TableKey
from cdc_engine.table_meta.schema import TableSchema


class Unknown(enum.Enum):
    POLICY = "what the lake follows of a table's changes, a Policy"
    APPROVAL = "what an operator approved of the statement for a table, in words, empty for nothing"
    SCHEMA = "the schema that was given for a table's stop, None for none"


@dataclasses.dataclass(frozen=True)
class Question:
    """`reason`: of the stop, where a schema is asked for."""

    what: Unknown
    table: TableKey
    reason: str = ""


class UnansweredError(Exception):
    """A rule came upon a question; never leaves `effects`."""

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.question = question


# a table that is made anew in the place of another has no row that an alteration could harm
OF_RECREATED: Policy = {kind: "keep" if kind == "drop" else "apply" for kind in PLANS}


@dataclasses.dataclass(frozen=True)
class Answers:
    """Those that are there so far. `recreated`: the table is made anew, so nothing of it needs to be asked."""

    known: Mapping[Question, Any] = dataclasses.field(default_factory=dict)
    recreated: bool = False

    def policy(self, name: TableKey) -> Policy:
        return OF_RECREATED if self.recreated else self._of(Question(Unknown.POLICY, name))

    def approved(self, name: TableKey) -> str:
        return "" if self.recreated else self._of(Question(Unknown.APPROVAL, name))

    def resolved(self, name: TableKey, reason: str) -> TableSchema | None:
        return None if self.recreated else self._of(Question(Unknown.SCHEMA, name, reason))

    def told(self, question: Question, answer: Any) -> Answers:
        """With one answer more."""
        return dataclasses.replace(self, known={**self.known, question: answer})

    def _of(self, question: Question) -> Any:
        if question not in self.known:
            raise UnansweredError(question)
        return self.known[question]
