"""Defines the questions that `effects` returns if neither the statement nor the schema history has the answer.

An answer may require files or the server, to which the pure functions of `effects` have no access. So `effects` returns the first open
question. `history` finds the answer, and calls `effects` again with this answer.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from sluice.cdc_engine.table_meta.change.policy import PLANS, Policy
from sluice.cdc_engine.table_meta.history.kept.known_schemas import TableKey
from sluice.cdc_engine.table_meta.schema import TableSchema


class Unknown(enum.Enum):
    POLICY = "the policy for changes of the table's schema (Policy)"
    APPROVAL = "the plan that an operator approved for the statement, or empty"
    SCHEMA = "the schema that an operator gave for the table's stop, or None"


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a table, which must be answered before the effects of a DDL statement are known. `reason` is set only for a question
    about a SCHEMA: why the statement stops the table if no operator has given a schema.
    """

    what: Unknown
    table: TableKey
    reason: str = ""


class UnansweredError(Exception):
    """Raised by a function of `effects` that needs the answer to a question. `effects_of` catches the exception and returns the
    question.
    """

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.question = question


# The policy for a table that is created again after a DROP TABLE or with OR REPLACE. The alterations of such a table need no approval,
# because the lake's rows of the dropped table are deleted first.
OF_RECREATED: Policy = {kind: "keep" if kind == "drop" else "apply" for kind in PLANS}


@dataclasses.dataclass(frozen=True)
class Answers:
    """The answers to questions about one DDL statement. If `known` lacks an answer, the methods raise UnansweredError. `recreated` tells
    whether the statement creates a dropped table again. In that case, no question is asked, because the table's policy is OF_RECREATED.
    """

    known: Mapping[Question, Any] = dataclasses.field(default_factory=dict)
    recreated: bool = False

    def policy(self, name: TableKey) -> Policy:
        return OF_RECREATED if self.recreated else self._of(Question(Unknown.POLICY, name))

    def approved(self, name: TableKey) -> str:
        return "" if self.recreated else self._of(Question(Unknown.APPROVAL, name))

    def resolved(self, name: TableKey, reason: str) -> TableSchema | None:
        return None if self.recreated else self._of(Question(Unknown.SCHEMA, name, reason))

    def with_answer(self, question: Question, answer: Any) -> Answers:
        """Returns these answers together with the answer to one more question."""
        return dataclasses.replace(self, known={**self.known, question: answer})

    def _of(self, question: Question) -> Any:
        if question not in self.known:
            raise UnansweredError(question)
        return self.known[question]
