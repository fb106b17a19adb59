"""The `sluice` command; started by ./sluice, which has made the environment it runs in."""

import typer

from console.toolchain.errors import SetupError
from console.toolchain.quality import run_quality
from console.toolchain.setup import DEMO_SERVERS, set_up

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


@app.command()
def setup() -> None:
    """Download and unpack what the demo needs: Java, the Delta jars and MySQL."""
    toolchain = set_up(DEMO_SERVERS)
    typer.echo(
        f"ready: Java {toolchain.java.version}, {', '.join(toolchain.servers)}, Delta, in {toolchain.cache.root}"
    )


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def test(context: typer.Context) -> None:
    """Check formatting, lint and types, and run the tests; further arguments go to pytest."""
    raise typer.Exit(run_quality(context.args))


def main() -> None:
    """Run a command; what the user can mend is said in one sentence, without a traceback."""
    try:
        app()
    except SetupError as error:
        typer.echo(f"sluice: {error}", err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
