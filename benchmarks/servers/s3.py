"""Runs an S3 server from its jar for the tests. The server keeps its objects in memory."""

from pathlib import Path

from pyarrow import fs

from sluice.console.toolchain.artifacts import load_artifacts
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess, last_lines, wait_until_listening
from sluice.console.toolchain.setup import set_up

S3PROXY = "s3proxy"
ACCESS_KEY, SECRET_KEY = "sluice-lake-access", "sluice-lake-secret"
REGION = "us-east-1"  # A bucket that was created without a region is in this region.
START_SECONDS_MAX = 60.0


class S3Server:
    """An S3 server on 127.0.0.1 with one bucket."""

    bucket = "lake"

    def __init__(self, folder: Path, port: int | None = None, java: Java | None = None) -> None:
        self.folder = folder.absolute()
        self.port = port or free_port()
        self._java = java
        self._process: ChildProcess | None = None

    @property
    def root(self) -> str:
        """The URL of the bucket for Sluice and deltalake."""
        return f"s3://{self.bucket}"

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """The storage options for deltalake."""
        return {
            "aws_endpoint_url": self.endpoint,
            "aws_region": REGION,
            "aws_allow_http": "true",
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
        }

    @property
    def log(self) -> Path:
        return self.folder / "s3.log"

    def start(self) -> "S3Server":
        """Starts the server. Returns when the bucket exists."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "s3.properties"
        settings.write_text("\n".join(f"{name}={value}" for name, value in self._settings().items()) + "\n")
        toolchain = set_up([], delta=False, extras=(S3PROXY,))
        (artifact,) = load_artifacts(S3PROXY)
        jar = toolchain.cache.jars / artifact.file_name
        java = self._java or toolchain.java
        limits = ["-Xmx160m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command = [str(java.program), *limits, "-jar", str(jar), "--properties", str(settings)]
        self._process = ChildProcess(command, self.log)
        self._require_answers(self._process)
        self.make_bucket(self.bucket)
        return self

    def stop(self) -> None:
        """Shuts the server down."""
        if self._process:
            self._process.stop(10)

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would."""
        if self._process:
            self._process.kill()

    def stall(self) -> None:
        """Suspends the server. Requests wait until `resume`."""
        if self._process:
            self._process.stall()

    def resume(self) -> None:
        """Continues the suspended server."""
        if self._process:
            self._process.resume()

    def make_bucket(self, name: str) -> None:
        """Creates a bucket, unless it already exists."""
        store = fs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region=REGION,
            endpoint_override=self.endpoint,
            allow_bucket_creation=True,
        )
        store.create_dir(name)

    def _require_answers(self, process: ChildProcess) -> None:
        if not wait_until_listening(self.port, (process,), START_SECONDS_MAX):
            raise ServerError(f"the S3 server did not start; its log {self.log} ends: {last_lines(self.log)}")

    def _settings(self) -> dict[str, str]:
        return {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ACCESS_KEY,
            "s3proxy.credential": SECRET_KEY,
            # jclouds' newer providers list the folders that Hadoop creates as empty objects, so the older provider is used.
            "jclouds.provider": "transient",
            "jclouds.identity": "local",
            "jclouds.credential": "local",
        }
