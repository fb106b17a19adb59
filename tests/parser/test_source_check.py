"""Tests that all problems of a source are reported at once, on values and on real servers."""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.errors import ReplicaClashError, SourceCheckError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.providers.facts import read_provider_facts
from sluice.cdc_engine.parser.server_facts import Replica, ServerFacts, read_facts
from sluice.cdc_engine.parser.source_check import check_source, server_version, source_warnings
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_servers import ServerFactory
from tests.parser.fix_shop import make_shop, run
from tests.parser.recording import capturing, source_of

SOURCE = Source(destination="shop", host="h", port=1, user="u")
GOOD = ServerFacts(
    version="8.0.31",
    mariadb=False,
    server_uuid="x",
    gtid_enabled=True,
    variables={"server_id": "1", "log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL"},
    grants=("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `u`@`%`",),
)


def problems(facts: ServerFacts) -> list[str]:
    with pytest.raises(SourceCheckError) as caught:
        check_source(SOURCE, facts)
    return caught.value.problems


def with_variables(**changes: str) -> ServerFacts:
    return dataclasses.replace(GOOD, variables={**GOOD.variables, **changes})


def with_grants(*grants: str) -> ServerFacts:
    return dataclasses.replace(GOOD, grants=grants)


def test_a_good_source_has_no_problems_and_no_warnings() -> None:
    assert check_source(SOURCE, GOOD) == []
    assert check_source(SOURCE, with_variables(binlog_expire_logs_seconds="0")) == []


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    bad = with_variables(log_bin="OFF", binlog_format="STATEMENT")
    bad = dataclasses.replace(bad, version="5.5.62", grants=("GRANT USAGE ON *.* TO `u`@`%`",))
    said = problems(bad)
    words = [
        "5.5.62",
        "log_bin",
        "binlog_format",
        "REPLICATION SLAVE",
        "REPLICATION CLIENT",
        "SELECT",
    ]
    assert len(said) == len(words)
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))


@pytest.mark.parametrize(
    "grants",
    [
        ["GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION"],
        ["GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `u`@`%`", "GRANT SELECT ON `shop`.* TO `u`@`%`"],
        ["GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO u", "GRANT SELECT (`id`), INSERT ON `shop`.`t` TO u"],
        ["GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO u", "GRANT ALL PRIVILEGES ON `shop`.* TO u"],
    ],
)
def test_grants_that_suffice(grants: list[str]) -> None:
    assert check_source(SOURCE, with_grants(*grants)) == []


def test_grants_on_one_database_are_no_replication_grants() -> None:
    assert len(problems(with_grants("GRANT ALL PRIVILEGES ON `shop`.* TO u"))) == 2


@pytest.mark.found
@pytest.mark.parametrize(
    ("version", "roles", "advice"),
    [
        (
            "8.0.31",
            ("reader", "replica"),
            "the inactive role reader or replica has this privilege, run SET DEFAULT ROLE ALL TO this user",
        ),
        (
            "11.4.5-MariaDB",
            ("replica",),
            "the inactive role replica has this privilege, run SET DEFAULT ROLE replica FOR this user",
        ),
    ],
)
def test_a_missing_privilege_of_an_inactive_role_is_reported_with_what_activates_it(
    version: str, roles: tuple[str, ...], advice: str
) -> None:
    """Defect 1125: the privileges of roles that are not active counted as granted, so the check passed and the engine was refused."""
    facts = dataclasses.replace(with_grants("GRANT USAGE ON *.* TO u"), version=version, mariadb="MariaDB" in version)
    assert not any("ROLE" in problem for problem in problems(facts))
    said = problems(dataclasses.replace(facts, inactive_roles=roles))
    assert len(said) == 3
    assert all(problem.endswith(advice) for problem in said)


@pytest.mark.parametrize("mariadb", [False, True])
def test_images_that_leave_columns_out_are_a_warning_fidelity(mariadb: bool) -> None:
    version = "10.11.5-MariaDB" if mariadb else "8.0.31"
    facts = dataclasses.replace(with_variables(binlog_row_image="minimal"), mariadb=mariadb, version=version)
    (warning,) = check_source(SOURCE, facts)
    assert warning.startswith("binlog_row_image is MINIMAL")
    assert ("REPLACE" in warning) == mariadb


@pytest.mark.found
def test_a_server_that_leaves_changes_out_of_its_binlog_is_a_problem() -> None:
    """Defect 48: with binlog_ignore_db, or on a replica without log_replica_updates, the binlog lacked rows, and nothing said so."""
    replica = dataclasses.replace(GOOD, replicates_unlogged=True)
    assert "log_replica_updates" in problems(replica)[0]
    ignoring = dataclasses.replace(GOOD, unlogged_databases="mysql,shop")
    with pytest.raises(SourceCheckError, match="binlog_ignore_db has shop"):
        check_source(SOURCE, ignoring, captured=TableFilter(r"shop\..*").keeps)
    (warning,) = check_source(SOURCE, ignoring, captured=TableFilter(r"other\..*").keeps)
    assert warning.startswith("binlog_ignore_db is shop: the binlog lacks the rows of these databases")
    (warning,) = check_source(SOURCE, dataclasses.replace(GOOD, logged_databases="shop"))
    assert warning.startswith("binlog_do_db is shop: the binlog lacks the rows of other databases")
    assert check_source(SOURCE, dataclasses.replace(GOOD, unlogged_databases="mysql,sys")) == []


@pytest.mark.parametrize(
    ("logs", "member", "provider", "warns"),
    [
        ("OFF", "ON", "/usr/lib/libgalera_smm.so", True),
        ("OFF", "OFF", "/usr/lib/libgalera_smm.so", False),
        ("OFF", "ON", "none", False),
        ("ON", "ON", "/usr/lib/libgalera_smm.so", False),
    ],
)
def test_a_galera_node_that_does_not_log_the_changes_of_other_nodes_is_a_warning(
    logs: str, member: str, provider: str, *, warns: bool
) -> None:
    variables = {**GOOD.variables, "log_slave_updates": logs, "wsrep_on": member, "wsrep_provider": provider}
    node = dataclasses.replace(GOOD, variables=variables)
    assert any("Galera" in each for each in source_warnings(node)) == warns
    check_source(SOURCE, node)


@pytest.mark.servers
@pytest.mark.found
@pytest.mark.parametrize("version", ["mysql-8.0.31", "mysql-5.7.22", "mariadb-11.4.5"])
def test_servers_report_what_they_leave_out_of_their_binlog(fresh_server: ServerFactory, version: str) -> None:
    """Defect 48, on real servers."""
    server = fresh_server(version, {"binlog_ignore_db": "secret", "log_slave_updates": "OFF"})
    become = "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='u'"
    for statement, is_replica in (("DO 0", False), (become, True), ("RESET SLAVE ALL", False)):
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
        querying = SourceConnection(source_of(server))
        facts = read_facts(querying)
        querying.close()
        assert (facts.unlogged_databases, facts.replicates_unlogged) == ("secret", is_replica)


def test_a_short_retention_is_a_warning() -> None:
    (warning,) = check_source(SOURCE, with_variables(binlog_expire_logs_seconds="7200"))
    assert "2.0 h" in warning
    assert check_source(SOURCE, with_variables(expire_logs_days="0.5")) != []


def test_a_replica_with_our_id_and_another_identity_is_named() -> None:
    ours = Replica(server_id=SOURCE.replica_id, uuid=SOURCE.replica_uuid, host="")
    foreign = Replica(server_id=SOURCE.replica_id, uuid="4e11fa47-71ca-11e1-9e33-c80aa9429562", host="db7")
    unrelated = Replica(server_id=7, uuid="", host="db8")
    assert check_source(SOURCE, dataclasses.replace(GOOD, replicas=(ours, unrelated))) == []
    with pytest.raises(ReplicaClashError, match="db7"):
        check_source(SOURCE, dataclasses.replace(GOOD, replicas=(ours, foreign)))
    with pytest.raises(ReplicaClashError, match="set `server_id` in `source` of shop"):
        check_source(SOURCE, dataclasses.replace(GOOD, replicas=(ours,)), displaced=True)
    with pytest.raises(ReplicaClashError, match="the server_id of h:1 itself"):
        check_source(SOURCE, with_variables(server_id=str(SOURCE.replica_id)))


def test_versions_are_read_with_their_ornaments() -> None:
    assert server_version("8.0.31-0ubuntu0.20.04.1") == (8, 0, 31)
    assert server_version("5.5.5-10.6.12-MariaDB-log") == (10, 6, 12)


def test_the_identity_of_a_destination_never_changes() -> None:
    assert SOURCE.replica_uuid == Source(destination="shop", host="x", port=2, user="y").replica_uuid
    assert SOURCE.replica_uuid != Source(destination="shop2", host="h", port=1, user="u").replica_uuid
    assert 1 << 30 <= SOURCE.replica_id < 1 << 31
    assert Source(destination="shop", host="h", port=1, user="u", server_id=77).replica_id == 77


@pytest.mark.found
def test_the_identity_of_a_replica_is_of_its_installation_and_its_server_id() -> None:
    """Defect 11: a replica's identity depended only on the destination's name, so two installations ended each other's dump."""
    made = [
        dataclasses.replace(SOURCE, installation=name, server_id=number)
        for name in ("", "a", "b")
        for number in (0, 7, 8)
    ]
    assert len({each.replica_uuid for each in made}) == len(made)
    assert len({each.replica_id for each in made if not each.server_id}) == 3
    assert len({each.replica_host for each in made}) == 3
    renamed = [each.named("shop-1001") for each in made]
    assert len({each.replica_id for each in renamed}) == len({each.replica_uuid for each in renamed}) == len(made)


@pytest.mark.found
@pytest.mark.servers
@pytest.mark.parametrize("version", ["mysql80", "mariadb114"])
def test_a_host_that_takes_over_ends_the_dump_of_the_host_before(version: str, request: pytest.FixtureRequest) -> None:
    """Test for defect 11: hosts that share a ledger have one installation, and so one identity."""
    server = request.getfixturevalue(version)
    source = source_of(server, installation="one")
    with capturing(source) as before, capturing(source) as after:
        assert "set `server_id`" in before.states.wait("REPLICA_CLASH")
        assert after.parser.state == "STREAMING"


@pytest.mark.servers
def test_real_servers_report_their_facts(shop: DatabaseServer) -> None:
    connection = SourceConnection(source_of(shop))
    try:
        facts = read_facts(connection)
    finally:
        connection.close()
    assert facts.file.startswith("binlog.0")
    assert facts.logs[-1].file == facts.file
    assert facts.offset <= facts.logs[-1].size_bytes
    assert facts.executed
    assert facts.gtid_enabled
    assert facts.server_uuid
    assert check_source(source_of(shop), facts) == []


@pytest.mark.servers
def test_our_own_registered_dump_is_no_clash_but_another_destination_with_our_id_is(shop: DatabaseServer) -> None:
    with capturing(source_of(shop, server_id=4242)) as capture:
        connection = SourceConnection(source_of(shop))
        try:
            facts = read_facts(connection)
        finally:
            connection.close()
        assert [replica.server_id for replica in facts.replicas] == [4242]
        assert check_source(source_of(shop, server_id=4242), facts) == []
        other = source_of(shop, server_id=4242, destination="other")
        with capturing(other, wait=False) as clashing:
            assert "sluice-shop" in clashing.states.wait("REPLICA_CLASH")
        assert capture.parser.state == "STREAMING"


@pytest.mark.servers
def test_a_server_that_is_set_up_wrongly_is_refused_with_all_reasons(fresh_mysql80: ServerFactory) -> None:
    server = fresh_mysql80({"binlog_format": "STATEMENT"})
    make_shop(server)
    run(server, "CREATE USER 'poor'@'%' IDENTIFIED BY 'x'", "CREATE ROLE reader", "GRANT SELECT ON *.* TO reader")
    run(server, "GRANT reader TO 'poor'@'%'", "SET DEFAULT ROLE reader TO 'poor'@'%'")
    source = source_of(server, user="poor", password=lambda: "x")
    with capturing(source, wait=False) as capture:
        reason = capture.states.wait("SOURCE_CHECK")
    for word in (
        "binlog_format is STATEMENT",
        "REPLICATION SLAVE",
        "REPLICATION CLIENT",
    ):
        assert word in reason
    assert "lacks SELECT" not in reason


@pytest.mark.managed
@pytest.mark.parametrize(
    ("version", "mariadb", "why"),
    [
        ("8.0.42", False, ""),
        ("5.7.44-log", False, ""),
        ("9.4.0", False, ""),
        ("8.4.3", False, "MySQL 8.4.3 is not among the versions with which Sluice is tested (MySQL 5.7, 8.0, 9)"),
        ("11.4.5-MariaDB", True, ""),
        ("5.5.5-10.6.12-MariaDB", True, "MariaDB 10.6.12 is not among the versions"),
    ],
)
def test_a_version_that_no_test_runs_is_a_warning_and_no_problem(version: str, mariadb: bool, why: str) -> None:
    warnings = source_warnings(ServerFacts(version=version, mariadb=mariadb, server_uuid="u", gtid_enabled=True))
    reported = [each for each in warnings if "is tested (" in each]
    assert [each.startswith(why) for each in reported] == [True] * bool(why)


@pytest.mark.managed
def test_mixed_is_a_warning_and_a_problem_only_without_the_grants() -> None:
    mixed = with_variables(binlog_format="MIXED")
    (problem,) = problems(mixed)
    assert "SET GLOBAL binlog_format = 'ROW'" in problem
    assert "GRANT SHOW VIEW, TRIGGER ON *.* TO this user, as an administrator" in problem
    seeing = "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT, SHOW VIEW, TRIGGER ON *.* TO `u`@`%`"
    (warning,) = check_source(SOURCE, dataclasses.replace(mixed, grants=(seeing,)))
    assert "stops until a re-snapshot (STATEMENT_FORMAT)" in warning
    hidden = dataclasses.replace(mixed, grants=(seeing, "REVOKE TRIGGER ON `shop`.* FROM `u`@`%`"))
    assert "GRANT SELECT, SHOW VIEW, TRIGGER" in problems(hidden)[0]
    everything = dataclasses.replace(mixed, grants=("GRANT ALL PRIVILEGES ON *.* TO `u`@`%` WITH GRANT OPTION",))
    assert len(check_source(SOURCE, everything)) == 1


@pytest.mark.managed
def test_proxysql_is_refused_by_name() -> None:
    def first_of(*statements: str) -> list[dict[str, str]]:
        return [{"@@version_comment": "(ProxySQL)"}] if statements == ("SELECT @@version_comment LIMIT 1",) else []

    found = read_provider_facts(first_of, "127.0.0.1", "8.0.31", {})
    (problem,) = problems(dataclasses.replace(GOOD, provider=found))
    assert problem.startswith("ProxySQL answers at this address")
    assert not read_provider_facts(lambda *_: [{"@@version_comment": "Debian"}], "", "", {}).proxy
