"""Tests that a secret is read from its location at each call, and that an error about a location is one sentence without the secret."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from sluice.secret_values import SecretLocation, SecretUnavailable, described, filled_text, value, value_of
from tests.waiting import wait_for

pytestmark = pytest.mark.secret

SECRET = "open-sesame-41"  # noqa: S105
SETTING = "source.password"


def command(script: str) -> SecretLocation:
    return SecretLocation(command=(sys.executable, "-c", script))


def why_not(location: SecretLocation) -> str:
    with pytest.raises(SecretUnavailable) as raised:
        value_of(location, SETTING)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None, "a cause may contain what was read"
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_secret_is_read_again_at_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    locations = (SecretLocation(env="DOOR"), SecretLocation(file=file), command(f"print(open({str(file)!r}).read())"))
    for secret in (SECRET, " spaces and ümlauts "):
        monkeypatch.setenv("DOOR", secret)
        file.write_text(secret)
        assert [value_of(location, SETTING) for location in locations] == [secret] * 3
    assert value_of(SecretLocation(), SETTING) == ""


def test_a_message_describes_a_location_without_arguments_of_a_command_and_repeats_no_other_text(
    tmp_path: Path,
) -> None:
    assert described(SecretLocation(env="DOOR").reference) == "the environment variable DOOR"
    assert described(SecretLocation(file=tmp_path).reference) == f"the file {tmp_path}"
    assert described(SecretLocation(command=("vault", f"-token={SECRET}")).reference) == "the command vault"
    assert described(SECRET) == "the value"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_one_line_end_after_a_secret_does_not_count(end: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(f"{SECRET}{end}".encode())
    assert value_of(SecretLocation(file=tmp_path / "password"), SETTING) == SECRET


def test_a_position_survives_as_a_text(tmp_path: Path) -> None:
    for location in (
        SecretLocation(env="DOOR"),
        SecretLocation(file=tmp_path),
        SecretLocation(command=("vault", 'a "b"', "ü")),
    ):
        assert SecretLocation.of(location.reference) == location
        assert filled_text("plain", SETTING) == "plain"
    with pytest.raises(ValueError, match="one of"):
        SecretLocation(env="DOOR", command=("vault",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$", "is not the location of a secret"),
        ("$file:", "is not the location of a secret"),
        ("$command:[]", "is not the location of a secret"),
        ("$command:{}", "is not a list in JSON"),
        ("$command:open-sesame-41", "is not a list in JSON"),
        ('$command:"open-sesame-41"', "is not a list in JSON"),
        ('$command:[""]', "none of them empty"),
        ('$command:["open-sesame-41", ""]', "none of them empty"),
        ('$command:["open-sesame-41", 1]', "none of them empty"),
        ("$open-sesame-41!", "the name of an environment variable may have only"),
        ("$41", "the name of an environment variable may have only"),
    ],
)
def test_a_text_that_names_no_location_is_refused_and_gives_no_empty_secret(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        SecretLocation.of(text)
    with pytest.raises(SecretUnavailable, match=f"^{SETTING}: .*{why}") as raised:
        filled_text(text, SETTING)
    assert "41" not in f"{refused.value}{raised.value}".replace(SETTING, "")
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"x" * (value.SECRET_BYTES_MAX + 1), "more than 64 KiB"),
    ],
)
def test_a_file_that_holds_no_secret_is_named(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(content)
    assert why_not(SecretLocation(file=tmp_path / "password")).startswith(f"{SETTING}: the file {tmp_path}/password")
    assert why in why_not(SecretLocation(file=tmp_path / "password"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert why_not(SecretLocation(file=tmp_path / "none")).endswith(
        "cannot be read: No such file or directory; correct the path or its permissions"
    )


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = psutil.Process().num_fds()
    for file in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        assert why_not(SecretLocation(file=file)) == (
            f"{SETTING}: the file {file} is not a regular file: name a file that can be read at each connect"
        )
    assert psutil.Process().num_fds() == before


def test_a_variable_that_is_not_set_is_named() -> None:
    assert "the environment variable NOT_SET_AT_ALL is not set" in why_not(SecretLocation(env="NOT_SET_AT_ALL"))


def test_a_command_that_fails_is_named_without_its_output() -> None:
    said = f"import sys; print({SECRET!r}); print({SECRET!r}, file=sys.stderr); sys.exit(3)"
    assert f"the command {sys.executable} failed with status 3" in why_not(command(said))
    assert f"the output of the command {sys.executable} is empty" in why_not(command("pass"))
    assert "cannot be started: No such file" in why_not(SecretLocation(command=("/no/such/program", SECRET)))


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value, "COMMAND_SECONDS_MAX", 2.0)
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        f"print({SECRET!r}, flush=True); time.sleep(600)"
    )
    begun = time.monotonic()
    assert "did not end within 2 s" in why_not(command(script))
    assert time.monotonic() - begun < 60
    child = int((tmp_path / "child").read_text())
    wait_for(
        "its child is gone",
        lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE,
    )


def test_a_command_that_writes_without_end_is_ended_after_the_largest_secret(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "while True: sys.stdout.write('y\\n' * 1024)"
    )
    before = psutil.Process().memory_info().rss
    assert (
        f"the output of the command {sys.executable} has more than 64 KiB, which is too long for a secret"
        in why_not(command(script))
    )
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert value_of(command(f"print('x' * {value.SECRET_BYTES_MAX - 1})"), SETTING) == "x" * (
        value.SECRET_BYTES_MAX - 1
    )
    assert "more than 64 KiB" in why_not(command(f"print('x' * {value.SECRET_BYTES_MAX})"))


def test_a_command_that_closes_its_output_and_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value, "COMMAND_SECONDS_MAX", 2.0)
    script = "import os, time; os.write(1, b'said'); os.close(1); time.sleep(600)"
    assert "did not end within 2 s" in why_not(command(script))


def test_what_a_command_writes_to_stderr_is_not_ours(capfd: pytest.CaptureFixture[str]) -> None:
    script = f"import sys; print({SECRET!r}, file=sys.stderr); print('fine')"
    assert value_of(command(script), SETTING) == "fine"
    assert SECRET not in "".join(capfd.readouterr())
