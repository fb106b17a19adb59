"""Defines the manifest of a staged batch and the report of a merge into one table.

`values`: the contents of a manifest. `file`: its JSON file (format: docs/architecture.md). `table_report`: the report of a merge. The
engine writes manifests (`cdc_engine.staging`), and runs read them (`spark_jobs.staged_batch`). This package imports only the standard
library."""
