"""Defines the errors of the toolchain's setup and of its servers. `console.main` prints the message of such an error."""


class SetupError(Exception):
    """Raised if a command cannot do its work, for example because the machine lacks something. The message says what to do."""


class ServerError(SetupError):
    """Raised if a server or another process of Sluice did not start, or has died. The message usually names the log of the process."""


class PortTakenError(ServerError):
    """Raised if another program listens on the port that a server must use."""


class CommandFailedError(SetupError):
    """Raised if a system program such as apt-get or dpkg-deb is missing or fails."""
