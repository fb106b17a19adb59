"""Defines the errors of setting up the toolchain or starting a server. console.main shows them."""


class SetupError(Exception):
    """The machine cannot run Sluice yet. The message is one sentence that contains what to do."""


class ServerError(SetupError):
    """A MySQL, MariaDB or Spark server did not start, or died. The message names its log."""


class PortTakenError(ServerError):
    """Another program listens on the port that a server must use."""


class CommandFailedError(SetupError):
    """A program of the system (apt-get, dpkg-deb, strip) failed, and there is no alternative."""
