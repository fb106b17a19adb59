"""Has the log store by which Spark commits to Delta tables in S3: its source in Java, and the jar made of it (`build_log_store`)."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).with_name("ConditionalS3LogStore.java")
JAR = Path(__file__).with_name("sluice-log-store.jar")
SETTING = "spark.delta.logStore.s3a.impl"
CLASS = "dev.sluice.storage.ConditionalS3LogStore"
