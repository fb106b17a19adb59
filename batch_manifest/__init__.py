"""Defines the manifest of a staged batch and the report of a merge into one table.

`values` defines the contents of a manifest. `file` writes and reads the JSON file of a manifest (docs/architecture.md describes the
format). `table_report` defines the report of a merge. The engine writes manifests (`cdc_engine.staging`), and runs read them
(`spark_jobs.staged_files`). This package imports only the standard library.
"""
