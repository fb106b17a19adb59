"""Runs Dagster's webserver with a change: the webserver asks the code server less often for its id, by which it notices new definitions
(`server_ids`).

    python -m sluice.orchestration.webserver -h 127.0.0.1 -p 3000 -w workspace.yaml

The arguments are those of `dagster-webserver`. That program also works with Sluice, but uses more processor time while nothing happens.
"""

from __future__ import annotations

from sluice.orchestration.server_ids import remember_server_ids


def main() -> None:
    """Runs the webserver until a signal ends it."""
    from dagster_webserver.cli import main as run  # noqa: PLC0415

    remember_server_ids()
    run()  # type: ignore[no-untyped-call]  # of Dagster


if __name__ == "__main__":
    main()
