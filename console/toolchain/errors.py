"""Defines the errors of the toolchain's setup and of servers. `console.main` shows them."""


class SetupError(Exception):
    """The machine cannot run Sluice yet. The message is a sentence that says what to do."""


class ServerError(SetupError):
    """A MySQL, MariaDB or Spark server did not start, or has died. The message names its log."""


class PortTakenError(ServerError):
    """Another program listens on the port that a server must use."""


class CommandFailedError(SetupError):
    """A system program (apt-get, dpkg-deb) failed, and there is no alternative."""
