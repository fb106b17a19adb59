"""Makes what `docker build` would make, in a folder and without Docker. It runs the steps of deploy/Dockerfile in a root directory with
Debian.

    debootstrap --variant=minbase bookworm BASE
    python -m tests.deploy.build_root BASE TARGET

It needs root on Linux. TARGET then has the files of the image as a layer stores them, with times in whole seconds. `use_root` starts the
image's programs. It takes some ten minutes and 6 GB, so it is not a test of the suite.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.deploy.dockerfile import Stage, is_sent, read_dockerfile
from tests.style.sources import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
IGNORE = DOCKERFILE.with_name("Dockerfile.dockerignore")
# Variables that name a mirror, a proxy and certificate authorities of this machine. In `docker build`, they come from Docker's
# configuration.
OF_THE_MACHINE = ("PIP_", "UV_DEFAULT_INDEX", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "no_proxy")
MACHINE_FILES = (
    "etc/resolv.conf",
    "etc/hosts",
    "etc/pip.conf",
    "etc/ssl/certs/ca-certificates.crt",
    "etc/apt/apt.conf.d",
)


def run_in(root: Path, command: str, environment: dict[str, str], *, folder: str = "/", user: int = 0) -> None:
    """Runs a shell command in the root directory, with its own /proc. Raises CalledProcessError if it fails."""
    inside = f"cd {shlex.quote(folder)} && {command}"
    as_user = f"setpriv --reuid={user} --regid={user} --clear-groups" if user else ""
    mounted = (
        f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && exec chroot {root} {as_user} /bin/sh -c "
        f"{shlex.quote(inside)}"
    )
    of_machine = {name: value for name, value in os.environ.items() if name.startswith(OF_THE_MACHINE)}
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", mounted]
    of_machine["SSL_CERT_FILE"] = "/etc/ssl/certs/ca-certificates.crt"
    start = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    subprocess.run(words, env={**start, **of_machine, **environment}, check=True)


def copy(source: Path, target: Path) -> None:
    """Copies files as a layer stores them: owner, mode, links, and times in whole seconds."""
    target.mkdir(parents=True, exist_ok=True)
    pack = subprocess.Popen(["tar", "--format=gnu", "-C", source, "-c", "."], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-C", target, "-xp"], stdin=pack.stdout, check=True)
    if pack.wait():
        raise RuntimeError(f"{source} was not copied")


def send_context(target: Path) -> None:
    """Copies the build context: the files of the checkout that .dockerignore does not exclude."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if is_sent(name, IGNORE):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def build(stage: Stage, base: Path, root: Path, built: dict[str, Path]) -> None:
    """Executes the instructions of a stage in a copy of the base."""
    copy(base, root)
    shutil.rmtree(root / "usr/share/man", ignore_errors=True)  # The slim image does the same.
    environment, folder = dict(stage.assigned("ARG")), "/"
    environment |= stage.environment
    for each in stage.instructions:
        print(f"{each.name} {each.text[:100]}", flush=True)  # noqa: T201  a command of its own
        if each.name == "RUN":
            borrow(root)
            run_in(root, each.text, environment, folder=folder)
        elif each.name == "WORKDIR":
            folder = each.text
            (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif each.name == "COPY":
            *options, source, target = each.text.split()
            if options:
                copy(built[options[0].removeprefix("--from=")] / source.lstrip("/"), root / target.lstrip("/"))
            else:
                send_context(root / target.lstrip("/"))


def borrow(root: Path) -> None:
    """Copies the machine's network settings and certificate authorities into the root. Programs in the root need them for the network."""
    for name in MACHINE_FILES:
        own, target = Path("/") / name, root / name
        if own.is_dir():
            shutil.copytree(own, target, dirs_exist_ok=True)
        elif own.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(own, target)


def main(base: Path, target: Path) -> None:
    built: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.absolute().parent) as folder:
        for number, stage in enumerate(read_dockerfile(DOCKERFILE)):
            root = Path(folder) / str(number)
            build(stage, base, root, built)
            built[stage.name] = root
        copy(built[""], target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
