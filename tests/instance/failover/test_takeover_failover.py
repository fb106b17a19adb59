"""Tests which source may take over from one that does not answer, and the command that lists the sources and switches to another one. No
server is queried: the tests provide the answers.
"""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.acts.stopped_destination import stopped_destination
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.errors import ActRefusedError, ConfigurationError
from sluice.cdc_engine.instance.failover import failover
from sluice.cdc_engine.instance.failover.failover import Failover, FailoverDependencies
from sluice.cdc_engine.instance.failover.takeover import Beats, TakeoverAnswer, in_order, refusal
from sluice.cdc_engine.instance.parts import epochs_of
from sluice.cdc_engine.instance.tables.resume import take_up
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from sluice.cdc_engine.meta.resume_requests import request, requests
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.start_position import Epochs
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.in_use import SOURCE_FILE, address_in_use, use
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.states import TableState
from sluice.console.source.switch import listed, switch
from tests.fix_ledgers import FileLedger

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
READ = Position(epoch=2, file="binlog.000003", offset=700, gtid_set=f"{A}:1-60", server_uuid=A, time_us=5)
STANDBY = ServerFacts(
    version="8.0.31",
    mariadb=False,
    server_uuid=B,
    gtid_enabled=True,
    executed=f"{A}:1-60",
    file="mysql-bin.000001",
    offset=500,
    logs=(BinaryLog(file="mysql-bin.000001", size_bytes=500),),
)
ONE, TWO, THREE = "one:3306", "two:3306", "three:3306"


def refused(position: Position | None = READ, facts: ServerFacts | None = STANDBY, epochs: Epochs | None = None) -> str:
    return refusal(position, TakeoverAnswer(address=TWO, facts=facts, trouble="refused"), epochs or Epochs(highest=2))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ""),
        ({"executed": f"{A}:1-80,{B}:1-3"}, ""),
        ({"executed": f"{A}:1-59"}, f"has not executed the transactions {A}:60"),
        ({"executed": f"{A}:1-90", "purged": f"{A}:1-70"}, f"purged the binlog with the transactions {A}:61-70"),
        ({"gtid_enabled": False}, "only if both servers have GTIDs"),
    ],
    ids=["all", "more", "behind", "purged", "no-gtids"],
)
def test_failover_a_standby_takes_over_only_where_nothing_is_missed(facts: dict[str, Any], words: str) -> None:
    reported = refused(facts=dataclasses.replace(STANDBY, **facts))
    assert words in reported
    assert bool(reported) == bool(words)


@pytest.mark.parametrize(
    ("executed", "purged", "words"),
    [
        ("0-1-60,7-1-5", "", ""),
        ("0-2-61,7-1-5", "0-1-60,7-1-5", ""),
        ("0-1-60,7-1-4", "", "has not executed"),
        ("0-1-90,7-1-9", "0-1-60,7-1-6", "purged"),
        ("0-1-60", "", "has not executed"),
    ],
    ids=["all", "more", "behind", "purged", "no-domain"],
)
def test_failover_of_mariadb_goes_by_each_domain(executed: str, purged: str, words: str) -> None:
    read = dataclasses.replace(READ, gtid_set="0-1-60,7-1-5", server_uuid="mariadb-1")
    facts = dataclasses.replace(STANDBY, mariadb=True, server_uuid="mariadb-2", executed=executed, purged=purged)
    reported = refused(read, facts)
    assert words in reported
    assert bool(reported) == bool(words)


def test_failover_waits_while_a_batch_cannot_be_finished_and_begins_anywhere_before_the_first() -> None:
    assert "merged in part" in refused(epochs=Epochs(highest=2, unfinished="a batch may be merged in part"))
    assert refused(position=None) == ""
    assert refused(facts=None) == "refused"


@pytest.mark.found
def test_failover_waits_while_resumed_tables_are_read_again(tmp_path: Path) -> None:
    """Defect 1060: when a stopped table was resumed, the cursor moved back to its stop. If another source took over before the stream had
    caught up, the other tables got the same changes again with order keys of a new epoch: tables without a key had them twice. The new
    source was also accepted without the transactions that the lake already had.
    """
    stop = StoppedTable(
        database="shop",
        table="odd",
        state=TableState.IMAGE_NOT_FULL,
        reason="lacks columns",
        position=dataclasses.replace(READ, offset=300, gtid_set=f"{A}:1-30"),
    )
    meta, folder = FileLedger(tmp_path), tmp_path
    meta.update(lambda _: Ledger(ledger_id="0123456789ab", epoch=2, cursor=READ, server_uuid=A, stopped_tables=(stop,)))
    request(folder, "shop", "odd")
    own = dataclasses.replace(
        STANDBY, server_uuid=A, file=READ.file, offset=900, logs=(BinaryLog(file=READ.file, size_bytes=900),)
    )
    take_up(requests(folder), meta, lambda *_: own, lambda: None, folder)
    assert meta.ledger.cursor == stop.position
    assert ledger_from_text(ledger_to_text(meta.ledger), "shop") == meta.ledger
    for facts in (STANDBY, dataclasses.replace(STANDBY, executed=f"{A}:1-40")):
        assert "stopped tables were resumed" in refused(meta.ledger.cursor, facts, epochs_of(meta))
    assert not refused(meta.ledger.cursor, own, epochs_of(meta)), "the stream continues on its own server"
    for offset in (600, 800):
        end = dataclasses.replace(READ, offset=offset)
        batch = dataclasses.replace(meta.ledger.next_batch(end), path="staging/1")
        meta.update(lambda ledger, batch=batch: ledger.hand_out(batch).ack(batch.batch_id))  # type: ignore[misc]
        assert bool(refused(end, STANDBY, epochs_of(meta))) == (offset == 600)
    assert not meta.ledger.set_cursor(stop.position).unfinished, "an operator chose this position"


@pytest.mark.found
def test_failover_is_not_blocked_by_a_resume_at_an_address_that_leads_to_another_server(tmp_path: Path) -> None:
    """Defect 1060: a table was resumed while the stream still read the first server and the address led to the next one already. The cursor
    moved back and no new epoch could begin, so the destination lost its position on the next server.
    """
    stop = StoppedTable(
        database="shop",
        table="odd",
        state=TableState.IMAGE_NOT_FULL,
        reason="lacks columns",
        position=dataclasses.replace(READ, offset=300, gtid_set=f"{A}:1-30"),
    )
    meta = FileLedger(tmp_path)
    meta.update(lambda _: Ledger(ledger_id="0123456789ab", epoch=2, cursor=READ, server_uuid=A, stopped_tables=(stop,)))
    request(tmp_path, "shop", "odd")
    take_up(requests(tmp_path), meta, lambda *_: STANDBY, lambda: None, tmp_path)
    (lost,) = meta.ledger.stopped_tables
    assert lost.state is TableState.RESUME_LOST
    assert "leads to another server" in lost.reason
    assert meta.ledger.cursor == READ
    assert not refused(meta.ledger.cursor, STANDBY, epochs_of(meta))


def test_failover_goes_around() -> None:
    assert in_order((ONE, TWO, THREE), TWO) == (THREE, ONE)
    assert in_order((ONE, TWO), TWO) == (ONE,)
    assert in_order((ONE, TWO), "gone:1") == (ONE, TWO)
    assert Beats().after("no").after("none") == Beats(2, "none")
    assert Beats(2, "none").after("") == Beats()


@pytest.fixture
def config(tmp_path: Path) -> SluiceConfig:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\n")
    sources = "".join(f"  - {{host: {name}, user: root}}\n" for name in ("one", "two", "three"))
    heartbeat = "heartbeat: {retries: 1, seconds: 0.01}\n"
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(f"sources:\n{sources}{heartbeat}")
    return load_config(tmp_path / "conf")


def directory(config: SluiceConfig) -> Path:
    return config.destination_dir("shop")


def test_failover_each_reader_of_conf_reads_the_source_that_was_chosen(config: SluiceConfig) -> None:
    assert config.destinations["shop"].source.address == ONE
    use(directory(config), TWO, "by command")
    assert config.with_sources_in_use().destinations["shop"].source.address == TWO
    use(directory(config), "gone:1", "by command")
    assert config.with_sources_in_use().destinations["shop"].source.address == ONE
    (directory(config) / SOURCE_FILE).write_text("{")
    with pytest.raises(ConfigurationError, match="remove this file to read the first"):
        config.with_sources_in_use()


def test_failover_conf_names_each_source_once(config: SluiceConfig) -> None:
    file = directory(config).parents[2] / "conf" / "destinations" / "shop.yaml"
    for text, words in (
        ("source: {user: root}\nsources: [{user: root}]\n", "set either `source` or"),
        ("sources: [{user: root}, {user: other}]\n", "have the same address"),
        ("sources: []\n", "source"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=words):
            load_config(file.parents[1])


def answering(**facts: ServerFacts | None) -> Any:
    def answer(source: Source, _file: str) -> TakeoverAnswer:
        return TakeoverAnswer(address=source.address, facts=facts.get(source.host), trouble=f"{source.host} is away")

    return answer


def read_up_to(config: SluiceConfig, position: Position) -> None:
    directory(config).mkdir(parents=True)
    with stopped_destination(directory(config)) as stopped:
        stopped.meta.update(lambda ledger: ledger.set_cursor(position))


def test_failover_by_command_goes_to_the_next_that_can_and_says_why_not(config: SluiceConfig) -> None:
    read_up_to(config, READ)
    behind = dataclasses.replace(STANDBY, executed=f"{A}:1-59")
    query = answering(two=behind, three=STANDBY)
    assert next(each.refused for each in listed(config, "shop", query)) == "one is away"
    with pytest.raises(ActRefusedError, match=f"{A}:60"):
        switch(config, "shop", 2, query)
    with pytest.raises(ConfigurationError, match="1 to 3"):
        switch(config, "shop", 4, query)
    assert address_in_use(directory(config)) == ""
    assert switch(config, "shop", 0, query).address == THREE
    assert address_in_use(directory(config)) == THREE


class Beat:
    """Imitates a heartbeat that all sources answer, except those whose hosts are in `silent`."""

    silent: frozenset[str] = frozenset({"one"})

    def __init__(self, source: Source, _sql: str) -> None:
        self._host = source.host

    def failure(self) -> str:
        return "no answer" if self._host in self.silent else ""

    def close(self) -> None:
        """Does nothing, because nothing is open."""


def made(config: SluiceConfig, monkeypatch: pytest.MonkeyPatch, query: Any, gave_way: threading.Event) -> Failover:
    monkeypatch.setattr(failover, "Heartbeat", Beat)
    monkeypatch.setattr(failover, "takeover_answer", query)
    dependencies = FailoverDependencies(
        directory=directory(config),
        position=lambda: READ,
        epochs=lambda: Epochs(highest=2),
        lacks=lambda: "",
        gives_way=gave_way.set,
    )
    return Failover(config.destinations["shop"], dependencies)


def test_failover_after_missed_heartbeats_takes_the_first_source_that_can_take_over_and_names_the_others(
    config: SluiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"two": dataclasses.replace(STANDBY, executed=f"{A}:1-59")}

    def later(source: Source, file: str) -> TakeoverAnswer:
        answer: TakeoverAnswer = answering(**answers)(source, file)
        return answer

    watch = made(config, monkeypatch, later, threading.Event())
    assert not watch.beat()
    assert watch.trouble() == ""
    assert not watch.beat()
    assert f"{TWO} cannot take over: the server has not executed the transactions {A}:60" in watch.trouble()
    assert f"{THREE} cannot take over: three is away" in watch.trouble()
    assert address_in_use(directory(config)) == ""
    answers["three"] = STANDBY
    assert watch.beat()
    assert address_in_use(directory(config)) == THREE


def test_failover_a_choice_by_command_is_noticed_with_the_next_beat(
    config: SluiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave_way = threading.Event()
    watch = made(config, monkeypatch, answering(), gave_way)
    use(directory(config), TWO, "by command")
    watch.run(threading.Event())
    assert gave_way.is_set()


def test_failover_takes_no_source_that_would_not_answer_the_heartbeat_either(
    config: SluiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If `heartbeat.sql` fails on every source, the engine would otherwise switch endlessly, with a new epoch each time."""
    watch = made(config, monkeypatch, answering(two=STANDBY, three=STANDBY), threading.Event())
    monkeypatch.setattr(Beat, "silent", frozenset({"one", "two", "three"}))
    assert not any(watch.beat() for _ in range(5))
    assert f"{TWO} cannot take over: no answer" in watch.trouble()
    monkeypatch.setattr(Beat, "silent", frozenset({"one", "two"}))
    assert watch.beat()
    assert address_in_use(directory(config)) == THREE


def test_failover_an_error_of_one_that_stands_by_hides_no_other(
    config: SluiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def query(source: Source, file: str) -> TakeoverAnswer:
        if source.host == "two":
            raise RuntimeError("'cryptography' package is required")
        answer: TakeoverAnswer = answering(three=STANDBY)(source, file)
        return answer

    watch = made(config, monkeypatch, query, threading.Event())
    assert [watch.beat() for _ in range(2)] == [False, True]
    assert address_in_use(directory(config)) == THREE


def test_failover_keeps_the_source_that_was_chosen_while_the_others_were_queried(
    config: SluiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def query(source: Source, file: str) -> TakeoverAnswer:
        use(directory(config), THREE, "by command")
        answer: TakeoverAnswer = answering(two=STANDBY)(source, file)
        return answer

    watch = made(config, monkeypatch, query, threading.Event())
    assert [watch.beat() for _ in range(2)] == [False, False]
    assert address_in_use(directory(config)) == THREE


def test_failover_of_an_engine_that_was_ended_meanwhile_writes_nothing(
    config: SluiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping, gave_way = threading.Event(), threading.Event()

    def query(source: Source, file: str) -> TakeoverAnswer:
        stopping.set()
        answer: TakeoverAnswer = answering(two=STANDBY)(source, file)
        return answer

    made(config, monkeypatch, query, gave_way).run(stopping)
    assert not gave_way.is_set()
    assert address_in_use(directory(config)) == ""


def test_failover_that_cannot_look_says_so(config: SluiceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = made(config, monkeypatch, answering(), threading.Event())
    directory(config).mkdir(parents=True)
    (directory(config) / SOURCE_FILE).write_text("{")
    assert not watch.beat_safely()
    assert "cannot check whether" in watch.trouble()
    (directory(config) / SOURCE_FILE).unlink()
    assert not watch.beat_safely()
    assert watch.trouble() == ""
