"""Services of `infra/deploy/compose.yaml`: Ray jobs train, runs go to PostgreSQL and files to S3."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from places import ROOT

pytestmark = pytest.mark.real

FOUND = """
import boto3, json, mlflow
client, s3 = mlflow.MlflowClient(), boto3.client("s3")
experiments = [client.get_experiment_by_name(name).experiment_id for name in ("demo", "polypool")]
runs = client.search_runs(experiments)
pages = {one: s3.get_paginator("list_objects_v2").paginate(Bucket=one) for one in ("mlflow", "polypool")}
print(json.dumps({
    "runs": {run.info.run_id: run.info.status for run in runs if run.data.tags.get("kind") == "train"},
    "keys": {one: [each["Key"] for page in page for each in page.get("Contents", [])] for one, page in pages.items()},
}))
"""


class Services:
    """The services of compose.yaml as a separate project that publishes no ports."""

    def __init__(self, folder: Path) -> None:
        self.file, self.name = folder / "compose.yaml", f"polypool-{secrets.token_hex(3)}"
        described = yaml.safe_load((ROOT / "infra/deploy/compose.yaml").read_text())
        del described["name"]  # unknown to older versions of Compose
        for service in described["services"].values():
            service.pop("ports", None)
        self.file.write_text(yaml.safe_dump(described))
        names = ("RAY_AUTH_TOKEN", "POSTGRES_PASSWORD", "S3_PASSWORD")
        self.env = os.environ | {name: secrets.token_hex(32) for name in names}
        self.env["POLYPOOL_RUNS"] = "s3://polypool/runs"
        self.images = {
            service["image"].replace("${TORCH:-cpu}", "cpu") for service in described["services"].values()
        }
        self.program = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]

    def compose(self, *words: str) -> str:
        command = [*self.program, "--file", str(self.file), "--project-name", self.name, *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def on_head(self, *words: str) -> str:
        return self.compose("exec", "-T", "head", *words)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path)
    for command in (
        ["docker", "info"],
        [*made.program, "version"],
        ["docker", "image", "inspect", *made.images],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            pytest.skip(f"{' '.join(command)}: {said.strip().splitlines()[-1]}; see stand_ins/README.md")
    try:
        made.compose("up", "--detach")
        yield made
    finally:
        made.compose("down", "--volumes")


def test_ray_jobs_train_and_store_runs_and_checkpoints(services):
    submit = ["ray", "job", "submit", "--address", "http://127.0.0.1:8265", "--"]
    services.on_head(
        *("env", "RAY_ADDRESS=http://127.0.0.1:8265", "polypool", "demo"),
        *("--images", "60", "--videos", "40", "--epochs", "1", "--aggregators", "mean"),
    )
    services.on_head(
        *submit, *("python", "-m", "polypool", "train", "demo", "--workers", "2", "--optim.epochs", "1")
    )
    found = json.loads(services.on_head("python", "-c", FOUND).splitlines()[-1])
    assert len(found["runs"]) == 4
    assert set(found["runs"].values()) == {"FINISHED"}
    for run in found["runs"]:
        assert any(f"{run}/artifacts/model/model.safetensors" in key for key in found["keys"]["mlflow"])
        kept = [key for key in found["keys"]["polypool"] if key.startswith(f"runs/{run}/checkpoint_")]
        assert len(kept) == 4, "expected 4 objects: the files of a checkpoint and its manifest"
