"""`infra/deploy/rayjob.yaml`, held against the fields that KubeRay documents and what they are to agree with."""

from __future__ import annotations

import re
import shlex
from typing import Any

import jsonschema
import yaml
from places import ROOT

from polypool.pipelines.commands.train import parse, take_run_id_file

JOB: dict[str, Any] = yaml.safe_load((ROOT / "infra/deploy/rayjob.yaml").read_text())
CLUSTER = JOB["spec"]["rayClusterSpec"]
HEAD, (WORKERS,) = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"]


def fields(*required: str, **kinds: Any) -> dict[str, Any]:
    """A record of exactly these fields."""
    return {"type": "object", "properties": kinds, "required": list(required), "additionalProperties": False}


TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
AMOUNTS = fields("cpu", "memory", cpu=TEXT, memory={"type": "string", "pattern": "^[0-9]+Gi$"})
CONTAINER = fields(
    "name",
    "image",
    name=TEXT,
    image=TEXT,
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    env={"type": "array", "items": fields("name", "value", name=TEXT, value=TEXT)},
    volumeMounts={"type": "array", "items": fields("name", "mountPath", name=TEXT, mountPath=TEXT)},
    securityContext=fields(allowPrivilegeEscalation={"const": False}),
    resources=fields("requests", "limits", requests=AMOUNTS, limits=AMOUNTS),
)
CLAIM = fields("claimName", claimName=TEXT)
POD = fields(
    "containers",
    terminationGracePeriodSeconds=COUNT,
    securityContext=fields(runAsNonRoot={"const": True}, runAsUser=COUNT, fsGroup=COUNT),
    volumes={"type": "array", "items": fields("name", name=TEXT, persistentVolumeClaim=CLAIM)},
    containers={"type": "array", "minItems": 1, "items": CONTAINER},
)
TEMPLATE = fields("spec", spec=POD)
GROUP = {
    "groupName": TEXT,
    "replicas": COUNT,
    "minReplicas": COUNT,
    "maxReplicas": COUNT,
    "rayStartParams": TEXTS,
    "template": TEMPLATE,
}
RAY_JOB = fields(
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=fields("name", name={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}),
    spec=fields(
        "entrypoint",
        "rayClusterSpec",
        entrypoint=TEXT,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        backoffLimit=COUNT,
        shutdownAfterJobFinishes=FLAG,
        ttlSecondsAfterFinished=COUNT,
        rayClusterSpec=fields(
            "headGroupSpec",
            rayVersion=TEXT,
            authOptions=fields(mode={"enum": ["disabled", "token"]}),
            headGroupSpec=fields("template", rayStartParams=TEXTS, template=TEMPLATE),
            workerGroupSpecs={"type": "array", "items": fields("groupName", "template", **GROUP)},
        ),
    ),
)


def test_it_has_the_fields_of_a_ray_job():
    jsonschema.validate(JOB, RAY_JOB)
    assert JOB["spec"]["backoffLimit"] > 0
    assert JOB["spec"]["shutdownAfterJobFinishes"] is True, "or each try leaves its cluster"
    assert CLUSTER["authOptions"] == {"mode": "token"}
    assert WORKERS["minReplicas"] <= WORKERS["replicas"] <= WORKERS["maxReplicas"]


def test_ray_is_the_one_of_the_lock():
    locked = re.search(r"^ray==(\S+)", (ROOT / "requirements.lock").read_text(), re.M)[1]
    assert CLUSTER["rayVersion"] == locked


def test_each_try_is_the_command_that_goes_on_with_the_run_of_the_shared_volume():
    program, verb, *words = shlex.split(JOB["spec"]["entrypoint"])
    assert (program, verb) == ("polypool", "train")
    file, rest = take_run_id_file(words)
    assert JOB["metadata"]["name"] in file.name
    assert not words[words.index("--run-id-file") + 1].startswith("/"), "it lies in POLYPOOL_HOME"
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


def test_the_image_runs_as_that_user_and_login_shells_find_ray():
    docker = (ROOT / "infra/deploy/Dockerfile").read_text()
    user = HEAD["template"]["spec"]["securityContext"]
    assert f"useradd --uid {user['runAsUser']} " in docker
    assert user["fsGroup"] == user["runAsUser"]
    place = re.search(r"COPY --from=build (\S+)", docker)[1]
    assert f"echo 'PATH={place}/bin:$PATH' >/etc/profile.d/" in docker
    assert re.search(r"apt-get install .*\bwget\b", docker)
