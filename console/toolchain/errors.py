"""Defines the errors of the toolchain's setup and of its servers. `console.main` prints the message of such an error."""


class SetupError(Exception):
    """Raised if the machine cannot run Sluice yet. The message says what to do."""


class ServerError(SetupError):
    """Raised if a MySQL, MariaDB or Spark server did not start, or has died. The message names the server's log."""


class PortTakenError(ServerError):
    """Raised if another program listens on the port that a server must use."""


class CommandFailedError(SetupError):
    """Raised if a system program such as apt-get or dpkg-deb is missing or fails."""
