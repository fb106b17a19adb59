"""What can go wrong while the toolchain is set up or a server is started; raised here, shown by console.main."""


class SetupError(Exception):
    """The machine cannot run Sluice yet; the message is one sentence that says what to do about it."""


class ServerError(SetupError):
    """A MySQL, MariaDB or Spark server did not start, or died; the message names its log."""


class PortTakenError(ServerError):
    """Another program listens on the port a server was told to use."""


class CommandFailedError(SetupError):
    """A program of the system (apt-get, dpkg-deb, strip) failed where no other way is left."""
