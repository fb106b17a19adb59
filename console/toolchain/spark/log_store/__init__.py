"""Contains the log stores by which Spark commits to Delta tables in S3 and Google Cloud Storage, and the class from which Google's client
gets tokens. This folder contains their Java sources, and the jar that `build_log_store` compiles from these sources.
"""

from __future__ import annotations

from pathlib import Path

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.java")))
JAR = Path(__file__).with_name("sluice-log-store.jar")
# Name of a store in `sluice setup --with` → (Delta's setting for URLs of this store, class of Sluice's log store).
SETTINGS = {
    "s3": ("spark.delta.logStore.s3a.impl", "dev.sluice.storage.ConditionalS3LogStore"),
    "google": ("spark.delta.logStore.gs.impl", "dev.sluice.storage.VerifiedGoogleLogStore"),
}
