"""Defines the manifest of a staged batch: the values that it lists (`values`) and its JSON file (`file`; format: docs/architecture.md), and
the report of a merge into one table (`table_report`).

The engine writes it (`cdc_engine.staging`), runs read it (`spark_jobs.staged_batch`). This package imports only the standard library."""
