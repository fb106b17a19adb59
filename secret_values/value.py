"""Reads a secret from its location. Callers read the secret at each connect, and nothing is cached."""

from __future__ import annotations

import os
import selectors
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.secret_values.location import SecretLocation, SecretUnavailable, is_reference
from sluice.secret_values.process_group import end_group

COMMAND_SECONDS_MAX = 20.0
SECRET_BYTES_MAX = 64 << 10  # A longer file or output is refused, because it cannot be a secret.


def value_of(location: SecretLocation, setting: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the secret without a line end. Returns an empty text if there is no location. `setting` is the secret's key in conf/, which
    errors name.

    Raises SecretUnavailable if the variable is not set, if the file cannot be read or is no regular file, or if the command fails or takes
    longer than COMMAND_SECONDS_MAX. Also raises it if the content of the file or the output of the command is empty, is longer than
    SECRET_BYTES_MAX, or is not UTF-8.
    """
    if location.file is not None:
        return _of_file(location.file, setting)
    if location.command:
        return _of_command(location.command, setting)
    if location.env and location.env not in environment:
        raise SecretUnavailable(
            f"{setting}: {location.description} is not set: set this variable in the environment of each process of Sluice"
        )
    return environment[location.env] if location.env else ""


def filled_text(text: str, setting: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the secret to which a text refers. A text that is no reference is returned unchanged. Raises SecretUnavailable if the secret
    cannot be read, or if the reference is not valid.
    """
    if not is_reference(text):
        return text
    try:
        location = SecretLocation.of(text)
    except ValueError as error:
        raise SecretUnavailable(f"{setting}: {error}") from None
    return value_of(location, setting, environment)


def _of_file(file: Path, setting: str) -> str:
    what = f"{setting}: {SecretLocation(file=file).description}"
    try:
        # Uses O_NONBLOCK, because otherwise opening a named pipe would wait for a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SecretUnavailable(f"{what} is not a regular file: name a file that can be read at each connect")
            with open(descriptor, "rb", closefd=False) as opened:
                content = opened.read(SECRET_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SecretUnavailable(
            f"{what} cannot be read: {error.strerror}; correct the path or its permissions"
        ) from None
    return _text(content, what)


def _of_command(command: tuple[str, ...], setting: str) -> str:
    """Runs a command and returns the secret that it prints. The command has its own process group, so that its child processes are ended
    too if the command hangs or writes too much. Raises SecretUnavailable if the command fails, takes too long, or prints something that
    cannot be a secret.
    """
    what = f"{setting}: {SecretLocation(command=command).description}"
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Discarded, because the command's messages may contain the secret.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "the arguments are not valid"
        raise SecretUnavailable(f"{what} cannot be started: {why}; correct the command in conf/") from None
    try:
        content = _output(process)
    except subprocess.TimeoutExpired:
        raise SecretUnavailable(
            f"{what} did not end within {COMMAND_SECONDS_MAX:g} s and was ended; run the command by hand to see why"
        ) from None
    finally:
        if process.returncode is None:
            end_group(process)
    # Ignores the exit status of a command that wrote too much, because it was killed.
    if process.returncode and len(content) <= SECRET_BYTES_MAX:
        raise SecretUnavailable(f"{what} failed with status {process.returncode}; run the command by hand to see why")
    return _text(content, f"{setting}: the output of {SecretLocation(command=command).description}")


def _output(process: subprocess.Popen[bytes]) -> bytes:
    """Returns the output of the command. If the output is longer than SECRET_BYTES_MAX, returns early, while the command still runs. Raises
    TimeoutExpired if the command does not end within COMMAND_SECONDS_MAX.
    """
    until = time.monotonic() + COMMAND_SECONDS_MAX
    content = bytearray()
    stdout: Any = process.stdout  # Typed as Any, because subprocess types it as optional although it is set with PIPE.
    with stdout as output, selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while len(content) <= SECRET_BYTES_MAX:
            left = until - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise subprocess.TimeoutExpired(process.args, COMMAND_SECONDS_MAX)
            part = os.read(output.fileno(), SECRET_BYTES_MAX + 1 - len(content))
            if not part:
                process.wait(max(until - time.monotonic(), 0))
                break
            content += part
    return bytes(content)


def _text(content: bytes, what: str) -> str:
    """Decodes the secret, and removes one line end. Raises SecretUnavailable if the secret is too long, empty, or not UTF-8."""
    if len(content) > SECRET_BYTES_MAX:
        raise SecretUnavailable(
            f"{what} has more than {SECRET_BYTES_MAX >> 10} KiB, which is too long for a secret: write only "
            "the secret there"
        )
    try:
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SecretUnavailable(f"{what} has bytes that are not UTF-8 text: write the secret as text") from None
    if not text:
        raise SecretUnavailable(f"{what} is empty: it must contain the secret")
    return text
