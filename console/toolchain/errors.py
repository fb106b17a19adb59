"""The errors of the toolchain's setup and of servers. `console.main` prints them."""


class SetupError(Exception):
    """The machine cannot run Sluice yet. The message says what to do."""


class ServerError(SetupError):
    """A MySQL, MariaDB or Spark server did not start, or has died. The message names the server's log."""


class PortTakenError(ServerError):
    """Another program listens on the port that a server must use."""


class CommandFailedError(SetupError):
    """A system program such as apt-get or dpkg-deb failed, and there is no alternative to it."""
