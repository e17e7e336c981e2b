"""`infra/deploy/rayjob.yaml`, compared with the fields documented by KubeRay and with other files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml
from places import ROOT

from polypool.pipelines.commands.train import parse, take_run_id_file

JOB: dict[str, Any] = yaml.safe_load((ROOT / "infra/deploy/rayjob.yaml").read_text())
CLUSTER = JOB["spec"]["rayClusterSpec"]
HEAD, (WORKERS,) = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"]
TYPES = dict.fromkeys(("shutdownAfterJobFinishes", "runAsNonRoot", "allowPrivilegeEscalation"), bool)
TYPES |= dict.fromkeys(("replicas", "minReplicas", "maxReplicas", "runAsUser", "fsGroup"), int)
TYPES |= dict.fromkeys(("backoffLimit", "ttlSecondsAfterFinished", "terminationGracePeriodSeconds"), int)
"""Types of non-string fields; Kubernetes refuses a number or `yes` where it expects a string."""


def fields(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each leaf field."""
    inner = value.items() if isinstance(value, dict) else [(name, each) for each in value]
    for key, each in inner:
        yield from fields(each, key) if isinstance(each, dict | list) else [(key, each)]


def test_fields_have_kubernetes_types():
    for name, value in fields(JOB):
        assert type(value) is TYPES.get(name, str), (name, value)
    for group in (HEAD, WORKERS):
        (container,) = group["template"]["spec"]["containers"]
        assert container["imagePullPolicy"] in ("Always", "IfNotPresent", "Never")
        asked, limits = (container["resources"][name] for name in ("requests", "limits"))
        assert asked == limits
        assert all(re.fullmatch(r"\d+([mkMGT]|[KMGT]i)?", size) for size in limits.values())


def test_rayjob_is_secured_and_shuts_down_its_cluster():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    for group in (HEAD, WORKERS):
        pod = group["template"]["spec"]
        assert pod["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False}
        assert pod["securityContext"]["runAsNonRoot"] is True
    assert JOB["spec"]["backoffLimit"] > 0
    assert JOB["spec"]["shutdownAfterJobFinishes"] is True, "each attempt must shut its cluster down"
    assert CLUSTER["authOptions"] == {"mode": "token"}
    assert WORKERS["minReplicas"] <= WORKERS["replicas"] <= WORKERS["maxReplicas"]


def test_ray_version_matches_lock_file():
    locked = re.search(r"^ray==(\S+)", (ROOT / "requirements.lock").read_text(), re.M)[1]
    assert CLUSTER["rayVersion"] == locked


def test_retries_resume_the_run_on_the_shared_volume():
    program, verb, *words = shlex.split(JOB["spec"]["entrypoint"])
    assert (program, verb) == ("polypool", "train")
    file, rest = take_run_id_file(words)
    assert JOB["metadata"]["name"] in file.name
    assert not words[words.index("--run-id-file") + 1].startswith("/"), (
        "the path must be relative to POLYPOOL_HOME"
    )
    run = parse(rest)
    assert run.workers <= WORKERS["replicas"]
    images = set()
    for group in (HEAD, WORKERS):
        pod = group["template"]["spec"]
        (container,), (volume,) = pod["containers"], pod["volumes"]
        (mount,) = container["volumeMounts"]
        env = {each["name"]: each["value"] for each in container["env"]}
        assert mount == {"name": volume["name"], "mountPath": env["POLYPOOL_HOME"]}
        assert env.keys() == {"POLYPOOL_HOME", "MLFLOW_TRACKING_URI"}
        assert volume["persistentVolumeClaim"] == {"claimName": "polypool"}
        images.add(container["image"])
    assert len(images) == 1
    assert HEAD["rayStartParams"]["num-cpus"] == "0"
    pod = WORKERS["template"]["spec"]
    assert run.workers * run.cpus <= WORKERS["replicas"] * int(
        pod["containers"][0]["resources"]["limits"]["cpu"]
    )


def test_image_has_job_user_ray_on_path_and_wget():
    docker = (ROOT / "infra/deploy/Dockerfile").read_text()
    user = HEAD["template"]["spec"]["securityContext"]
    assert f"useradd --uid {user['runAsUser']} " in docker
    assert user["fsGroup"] == user["runAsUser"]
    place = re.search(r"COPY --from=build (\S+)", docker)[1]
    assert f"echo 'PATH={place}/bin:$PATH' >/etc/profile.d/" in docker
    assert re.search(r"apt-get install .*\bwget\b", docker)
