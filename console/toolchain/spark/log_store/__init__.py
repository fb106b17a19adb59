"""Contains the log store by which Spark commits to Delta tables in S3: its Java source, and the jar that `build_log_store` compiles from
it.
"""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).with_name("ConditionalS3LogStore.java")
JAR = Path(__file__).with_name("sluice-log-store.jar")
SETTING = "spark.delta.logStore.s3a.impl"
CLASS = "dev.sluice.storage.ConditionalS3LogStore"
