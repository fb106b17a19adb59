"""Runs the services of deploy/compose/compose.yaml in a root directory that `build_root` made. Each one runs as Docker would run it: with
its command, its environment, its own /var/lib/sluice, and not as root. The servers that they use are real, but another S3 server replaces
MinIO.

    unshare --net python -m tests.deploy.use_root TARGET

The program needs root on Linux. In a separate network, all ports are free and all names are names of this host. The program ends when a
changed row is in the lake, and all services have stopped.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import deltalake
import yaml
from sqlalchemy import create_engine, text

from benchmarks.servers.postgres import PostgresServer
from benchmarks.servers.s3 import S3Server
from sluice.console.toolchain.database.server import DatabaseServer
from tests.deploy.dockerfile import read_dockerfile
from tests.style.sources import ROOT

COMPOSE = ROOT / "deploy" / "compose"
IMAGE = read_dockerfile(ROOT / "deploy" / "Dockerfile")[-1]
USER = 10001
SECRETS = {
    "SLUICE_SHOP_PASSWORD": "the shop's password",
    "SLUICE_POSTGRES_PASSWORD": "postgres",
    "SLUICE_ENGINE_TOKEN": "a token of the engine",
    "LAKE_ACCESS_KEY": "sluice-lake-access",
    "LAKE_SECRET_KEY": "sluice-lake-secret",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # Needed for this S3 server, not for MinIO.
}
SERVICES = ("engine", "spark", "code-server", "webserver", "daemon")
NAMES = (*SERVICES, "mysql", "postgres", "store")
SECONDS_MAX = 600.0


@dataclasses.dataclass(frozen=True)
class Service:
    """A service of the compose file that runs in the root file system."""

    name: str
    root: Path
    process: subprocess.Popen[bytes]
    probe: tuple[str, ...]

    def answers(self) -> bool:
        """Runs the probe of the compose file in the service's own file system."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} has ended with {self.process.returncode}")
        return self.run(*self.probe).returncode == 0

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the file system of the service, as `docker compose exec` does."""
        enter = ["nsenter", f"--target={self.process.pid}", "--mount", "--uts", *as_user(self.root), *command]
        return subprocess.run(enter, env=environment(), check=False, capture_output=True, text=True)


def environment() -> dict[str, str]:
    return {**IMAGE.environment, "HOME": "/var/lib/sluice", **SECRETS}


def as_user(root: Path) -> list[str]:
    return ["/usr/sbin/chroot", f"--userspec={USER}:{USER}", str(root)]


def start(name: str, root: Path, log: Path) -> Service:
    """Starts a service with its own /var/lib/sluice, as in a container, and with the files of the compose file."""
    described = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"][name]
    own = f"{root}/var/lib/sluice"
    prepare = (
        f"hostname {name} && mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev"
        f" && mount -t tmpfs -o uid={USER},gid={USER} tmpfs {own} && mkdir {own}/dagster && chown {USER}:{USER} {own}/dagster"
        f" && cp {COMPOSE}/conf/dagster.yaml {own}/dagster/"
    )
    if name != "engine":  # As in the chart, no other container has the engine's key.
        own = f"{root}/etc/sluice/certificate"
        prepare += f" && cp {own}/engine.pem {root}/ && mount -t tmpfs tmpfs {own} && cp {root}/engine.pem {own}/"
    command = shlex.join([*as_user(root), "tini", "--", *map(str, described["command"])])
    words = ["unshare", "--mount", "--uts", "/bin/sh", "-c", f"{prepare} && exec {command}"]
    with log.open("wb") as output:
        process = subprocess.Popen(words, env=environment(), stdout=output, stderr=output)
    kind, *probe = described["healthcheck"]["test"]
    assert kind == "CMD"
    return Service(name, root, process, tuple(map(str, probe)))


def wait_until(what: str, holds: Callable[[], Any]) -> None:
    begun = time.monotonic()
    while not holds():
        if time.monotonic() > begun + SECONDS_MAX:
            raise TimeoutError(what)
        time.sleep(0.5)
    print(f"{what} ({time.monotonic() - begun:.0f} s)", flush=True)  # noqa: T201  a command of its own


@contextmanager
def servers(folder: Path) -> Iterator[DatabaseServer]:
    """Starts MySQL, Postgres and the S3 server on their usual ports. Creates in them what the scripts of the compose file create."""
    with ExitStack() as ending:
        postgres = PostgresServer(folder / "postgres", 5432).start()
        ending.callback(postgres.stop)
        with create_engine(postgres.url, isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text("CREATE DATABASE sluice"))
            connection.execute(text((COMPOSE / "postgres.sql").read_text()))
        store = S3Server(folder / "store", 9000).start()
        ending.callback(store.stop)
        mysql = DatabaseServer("mysql-8.0.31", folder / "mysql", 3306).start()
        ending.callback(mysql.stop)
        with mysql.connect() as session, session.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE USER sluice@'%%' IDENTIFIED BY %s", (SECRETS["SLUICE_SHOP_PASSWORD"],))
            for statement in (COMPOSE / "mysql.sql").read_text().split(";\n"):
                if statement.strip():
                    cursor.execute(statement)
            session.commit()
        yield mysql


def rows() -> int:
    options = {
        "aws_endpoint_url": "http://127.0.0.1:9000",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
        "aws_access_key_id": SECRETS["LAKE_ACCESS_KEY"],
        "aws_secret_access_key": SECRETS["LAKE_SECRET_KEY"],
    }
    path = "s3://lake/tables/shop/orders"
    if not deltalake.DeltaTable.is_deltatable(path, options):
        return 0
    reader = deltalake.QueryBuilder().register("orders", deltalake.DeltaTable(path, storage_options=options))
    return int(reader.execute("SELECT count(*) AS n FROM orders").read_all()["n"][0].as_py())


def main(root: Path) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {' '.join((*NAMES, socket.gethostname()))}\n")
    shutil.copytree(COMPOSE / "conf", root / "etc/sluice/conf", dirs_exist_ok=True)
    make_certificate(root)
    kernels = sorted((root / "opt/sluice/kernels").rglob("*.nb?"))
    started: list[Service] = []
    with tempfile.TemporaryDirectory(prefix="use-root-") as name, servers(Path(name)) as mysql:
        try:
            for service in SERVICES:
                started.append(start(service, root, Path(name) / f"{service}.log"))
                wait_until(f"{service} answers its probe", started[-1].answers)
            require_archive(started[SERVICES.index("spark")])
            wait_until("the rows are in the lake", lambda: rows() == 3)
            with mysql.connect() as connection, connection.cursor() as cursor:
                cursor.execute("INSERT INTO shop.orders (status, total) VALUES ('paid', 1.00)")
                connection.commit()
            wait_until("the change is in the lake", lambda: rows() == 4)
            require(started[SERVICES.index("code-server")], "check", "✓ Spark at sc://spark:15002")
            require(started[SERVICES.index("code-server")], "status", "the engine on engine reads this destination")
            require(started[SERVICES.index("engine")], "status", "RUNNING")
            while started:
                last = started[-1]
                last.process.send_signal(signal.SIGTERM)
                wait_until(f"{last.name} has ended", lambda: started[-1].process.poll() is not None)
                started.pop()
        finally:
            for each in started:
                each.process.kill()
            for log in Path(name).glob("*.log"):
                shutil.copy(log, root / "tmp")
    assert sorted((root / "opt/sluice/kernels").rglob("*.nb?")) == kernels, "the engine has compiled kernels"
    assert kernels, "the image has no kernels"


def make_certificate(root: Path) -> None:
    folder = root / "etc/sluice/certificate"
    folder.mkdir(exist_ok=True)
    script = (COMPOSE / "make-certificate.sh").read_text().replace("cd /certificate", "cd /etc/sluice/certificate")
    subprocess.run(["/usr/sbin/chroot", root, "/bin/sh", "-c", script], env={"PATH": os.defpath}, check=True)


def require(service: Service, command: str, words: str) -> None:
    """Requires that a command of `sluice` succeeds in a container, and that its output contains the given text."""
    done = service.run("sluice", command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert words in " ".join(done.stdout.split()), done.stdout
    print(f"sluice {command} finds nothing wrong in {service.name}", flush=True)  # noqa: T201  a command of its own


def require_archive(spark: Service) -> None:
    """Requires that Spark's Java has mapped the archive of classes in the image."""
    children = subprocess.run(
        ["ps", "--no-headers", "-o", "pid", "--ppid", str(spark.process.pid)],
        capture_output=True,
        text=True,
        check=True,
    )
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in children.stdout.split()]
    assert any("/opt/sluice/cache/classes/" in each for each in maps), "Spark's classes are read from its jars"
    print("Spark has mapped the archive of its classes", flush=True)  # noqa: T201  a command of its own


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
