"""Provides a conf folder like the one in Canal's distribution, with one instance."""

from __future__ import annotations

import json
from pathlib import Path

SERVER = r"""
#################################################
######### 		common argument		#############
#################################################
# tcp bind ip
canal.ip =
canal.register.ip =
canal.port = 11111
canal.metrics.pull.port = 11112
# canal instance user/passwd
# canal.user = canal
# canal.passwd = E3619321C1A937C46A0D8BD1DAC39F93B27D4458
#canal.admin.manager = 127.0.0.1:8089
canal.admin.port = 11110
canal.admin.user = admin
canal.zkServers =
canal.zookeeper.flush.period = 1000
canal.withoutNetty = false
# tcp, kafka, rocketMQ, rabbitMQ, pulsarMQ
canal.serverMode = tcp
canal.file.data.dir = ${canal.conf.dir}
canal.file.flush.period = 1000
canal.instance.memory.buffer.size = 16384
canal.instance.memory.buffer.memunit = 1024
canal.instance.memory.batch.mode = MEMSIZE
canal.instance.memory.rawEntry = true
canal.instance.detecting.enable = false
canal.instance.detecting.sql = select 1
canal.instance.transaction.size =  1024
canal.instance.fallbackIntervalInSeconds = 60
canal.instance.network.receiveBufferSize = 16384
canal.instance.filter.druid.ddl = true
canal.instance.filter.query.dcl = false
canal.instance.filter.query.dml = false
canal.instance.filter.query.ddl = false
canal.instance.filter.table.error = false
canal.instance.filter.rows = false
canal.instance.filter.transaction.entry = false
canal.instance.filter.dml.insert = false
canal.instance.binlog.format = ROW,STATEMENT,MIXED
canal.instance.binlog.image = FULL,MINIMAL,NOBLOB
canal.instance.get.ddl.isolation = false
canal.instance.parser.parallel = true
canal.instance.parser.parallelBufferSize = 256
canal.instance.tsdb.enable = true
canal.instance.tsdb.dir = ${canal.file.data.dir:../conf}/${canal.instance.destination:}
canal.instance.tsdb.url = jdbc:h2:${canal.instance.tsdb.dir}/h2;CACHE_SIZE=1000;MODE=MYSQL;
canal.instance.tsdb.dbUsername = canal
canal.instance.tsdb.dbPassword = canal
canal.instance.tsdb.snapshot.interval = 24
canal.destinations = example
canal.conf.dir = ../conf
canal.auto.scan = true
canal.auto.scan.interval = 5
canal.instance.tsdb.spring.xml = classpath:spring/tsdb/h2-tsdb.xml
canal.instance.global.mode = spring
canal.instance.global.lazy = false
canal.instance.global.manager.address = ${canal.admin.manager}
canal.instance.global.spring.xml = classpath:spring/file-instance.xml
canal.mq.flatMessage = true
kafka.bootstrap.servers = 127.0.0.1:9092
kafka.acks = all
"""
INSTANCE = r"""
# canal.instance.mysql.slaveId=0
canal.instance.gtidon=false
canal.instance.master.address=127.0.0.1:3306
canal.instance.master.journal.name=
canal.instance.master.position=
canal.instance.master.timestamp=
canal.instance.master.gtid=
canal.instance.tsdb.enable=true
#canal.instance.standby.address =
canal.instance.dbUsername=canal
canal.instance.dbPassword=canal
canal.instance.connectionCharset = UTF-8
canal.instance.enableDruid=false
canal.instance.filter.regex=.*\\..*
canal.instance.filter.black.regex=mysql\\.slave_.*
# canal.instance.filter.field=test1.t_product:id/subject/keywords
canal.mq.topic=example
canal.mq.partition=0
"""


def meta(*clients: tuple[int, int, int], table_filter: str = r".*\..*") -> str:
    """Returns the content of a meta.dat. Each client is given by its id, its position and its timestamp in milliseconds."""
    left = [
        {
            "clientIdentity": {"clientId": client, "destination": "example", "filter": table_filter},
            "cursor": {
                "identity": {"slaveId": -1, "sourceAddress": {"address": "127.0.0.1", "port": 3306}},
                "postion": {
                    "gtid": "", "included": False, "journalName": "mysql-bin.000009", "position": position, "serverId": 1,
                    "timestamp": time,
                },
            },
        }
        for client, position, time in clients
    ]  # fmt: skip
    return json.dumps({"clientDatas": left, "destination": "example"})


def canal_folder(root: Path, server: str = "", instance: str = "", name: str = "example") -> Path:
    """Writes a conf folder of Canal, and returns it. Settings in `server` and `instance` are last in their files and take precedence."""
    folder = root / "canal" / "conf"
    (folder / name).mkdir(parents=True)
    (folder / "canal.properties").write_text(f"{SERVER}{server}\n")
    (folder / name / "instance.properties").write_text(f"{INSTANCE}{instance}\n")
    return folder
