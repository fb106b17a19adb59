"""Renders deploy/chart with Helm. Validates the result with the schemas of Kubernetes, and its dagster.yaml with those of dagster-k8s.

    pip install kubernetes-validate dagster-k8s==0.29.27        in an environment of its own
    python -m tests.deploy.check_chart HELM ENVIRONMENT

No cluster is needed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from sluice.cdc_engine.config import load_config
from sluice.console.dagster_check import findings_of
from tests.style.sources import ROOT

CHART = ROOT / "deploy" / "chart"
CHOICES: tuple[tuple[str, ...], ...] = (
    (),
    ("runs.launcher=kubernetes", "engine.metricsPort=9100", "engine.replicas=3"),
    ("engine.certificateSecret=own", "networkPolicy=false", "conf.spark=spark.master local[4]"),
)
WRONG = (("engine.replicas=0",), ("runs.launcher=docker",), ("conf.sluice.data_dir=/srv",), ("spark.memory=much",))
LAUNCHER = """
import sys, yaml
from dagster import Shape
from dagster._config import process_config
from dagster_k8s import K8sRunLauncher
result = process_config(Shape(K8sRunLauncher.config_type()), yaml.safe_load(sys.stdin)["run_launcher"]["config"])
sys.exit(0 if result.success else str([error.message for error in result.errors]))
"""


def render(helm: Path, choices: Sequence[str]) -> str:
    """Returns what Helm renders with these choices. Raises CalledProcessError if Helm or the schema of the values refuses them."""
    words = [str(helm), "template", "my", str(CHART), *(word for each in choices for word in ("--set", each))]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def settings_of(rendered: str, ending: str) -> dict[str, str]:
    """Returns the files of a ConfigMap."""
    maps = [each for each in yaml.safe_load_all(rendered) if each and each["kind"] == "ConfigMap"]
    (data,) = [each["data"] for each in maps if each["metadata"]["name"].endswith(ending)]
    return dict(data)


def check(rendered: str, environment: Path, folder: Path) -> None:
    file = folder / "rendered.yaml"
    file.write_text(rendered)
    validator = environment / "bin" / "kubernetes-validate"
    done = subprocess.run([validator, "--strict", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr, done.stdout + done.stderr
    (folder / "conf" / "destinations").mkdir(parents=True)
    for name, text in settings_of(rendered, "-conf").items():
        (folder / "conf" / name).write_text(text)
    for name, text in settings_of(rendered, "-destinations").items():
        (folder / "conf" / "destinations" / name).write_text(text)
    config = load_config(folder / "conf")
    dagster = settings_of(rendered, "-dagster")["dagster.yaml"]
    settings: dict[str, Any] = yaml.safe_load(dagster)
    assert list(findings_of(settings, config)) == []
    if settings["run_launcher"]["module"] == "dagster_k8s":
        subprocess.run([environment / "bin" / "python", "-c", LAUNCHER], input=dagster, text=True, check=True)


def main(helm: Path, environment: Path) -> None:
    subprocess.run([helm, "lint", "--strict", CHART], check=True)
    for choices in CHOICES:
        with tempfile.TemporaryDirectory() as folder:
            check(render(helm, choices), environment, Path(folder))
    for choices in WRONG:
        try:
            render(helm, choices)
        except subprocess.CalledProcessError:
            continue
        raise AssertionError(f"{choices} is not refused")
    print(f"{len(CHOICES)} sets of values are valid, {len(WRONG)} wrong ones are refused")  # noqa: T201  a command of its own


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
