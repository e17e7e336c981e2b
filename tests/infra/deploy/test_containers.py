from __future__ import annotations

import os
import re
import shlex
import tomllib
from typing import Any
from urllib.parse import urlsplit

import click
import object_storage
import yaml
from mlflow.cli import cli as mlflow_cli
from mlflow.server.security_utils import is_allowed_host_header
from packaging.requirements import Requirement
from places import ROOT
from programs import begin, end
from ray.scripts.scripts import cli as ray_cli

DEPLOY = ROOT / "infra/deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
LINES = [
    line.strip()
    for line in re.sub(r"\\\n", " ", DOCKERFILE).splitlines()
    if line.strip() and not line.startswith("#")
]


def words(service: str) -> list[str]:
    command = SERVICES[service]["command"]
    return command if isinstance(command, list) else shlex.split(command)


def options(service: str) -> dict[str, Any]:
    """Parse the command of a service with the program that it starts."""
    program, verb, *flags = words(service)
    return read(program, verb, flags)


def read(program: str, verb: str, flags: list[str]) -> dict[str, Any]:
    cli = {"ray": ray_cli, "mlflow": mlflow_cli}[program]
    return cli.get_command(click.Context(cli), verb).make_context(verb, flags).params


def test_ray_ports_agree():
    head, worker = options("head"), options("worker")
    assert (head["head"], worker["head"], head["block"], worker["block"]) == (True, False, True, True)
    assert worker["address"] == f"head:{head['port']}"
    assert SERVICES["head"]["ports"] == [f"127.0.0.1:{head['dashboard_port']}:{head['dashboard_port']}"]
    assert head["dashboard_host"] == "0.0.0.0", "the published dashboard must listen on all addresses"
    for service in ("head", "worker"):
        _, program, verb, *flags = SERVICES[service]["healthcheck"]["test"]
        assert read(program, verb, flags)["address"] == worker["address"]
        assert SERVICES[service]["volumes"] == ["${POLYPOOL_DATA:-data}:/data"]
    submit = re.search(r"ray job submit --address (\S+)", (DEPLOY / "compose.yaml").read_text())[1]
    assert urlsplit(submit).port == head["dashboard_port"]


def test_mlflow_settings_match_server_and_other_services():
    server, told = options("mlflow"), SERVICES["mlflow"]["environment"]
    reads = {option.envvar for option in mlflow_cli.get_command(click.Context(mlflow_cli), "server").params}
    assert {name for name in told if name.startswith("MLFLOW_")} <= reads
    assert (server["host"], server["serve_artifacts"]) == ("0.0.0.0", True)
    assert SERVICES["head"]["environment"]["MLFLOW_TRACKING_URI"] == f"http://mlflow:{server['port']}"
    hosts = told["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert all(is_allowed_host_header(hosts, f"{name}:{server['port']}") for name in ("mlflow", "127.0.0.1"))
    assert f"127.0.0.1:{server['port']}/health" in SERVICES["mlflow"]["healthcheck"]["test"][-1]

    database = urlsplit(re.sub(r"\$\{(\w+):[^}]*\}", r"\1", told["MLFLOW_BACKEND_STORE_URI"]))
    theirs = SERVICES["postgres"]["environment"]
    assert (database.scheme, database.hostname, database.port) == ("postgresql+psycopg2", "postgres", 5432)
    assert "\npsycopg2-binary==" in (DEPLOY / "postgres.lock").read_text(), (
        "postgres.lock must contain the driver of this URL scheme"
    )
    assert database.password == "POSTGRES_PASSWORD"
    assert (database.username, database.path) == (theirs["POSTGRES_USER"], f"/{theirs['POSTGRES_DB']}")

    keys = SERVICES["s3"]["environment"]
    assert told["AWS_ENDPOINT_URL"] == f"http://s3{words('s3')[words('s3').index('--address') + 1]}"
    assert keys["MINIO_ROOT_USER"] == told["AWS_ACCESS_KEY_ID"]
    assert keys["MINIO_ROOT_PASSWORD"] == told["AWS_SECRET_ACCESS_KEY"]
    assert SERVICES["bucket"]["environment"].items() <= told.items()


def test_code_reads_variables_and_secrets_are_required():
    text = "".join(file.read_text() for file in (ROOT / "infra").rglob("*.py"))
    for name, service in SERVICES.items():
        for variable, value in service["environment"].items():
            if variable.startswith(("POLYPOOL_", "MLFLOW_TRACKING")):
                assert re.search(rf"""environ(\.get)?[(\[]"{variable}\"""", text), variable
            if re.search("TOKEN|PASSWORD|SECRET", variable):
                assert re.fullmatch(r"\$\{\w+:\?.+\}", value), (
                    f"{name}: {variable} must come from the environment"
                )


def test_bucket_creation_is_idempotent(s3_server):
    told = SERVICES["bucket"]["environment"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= told | object_storage.KEYS | {"AWS_ENDPOINT_URL": s3_server.endpoint}
    python, *arguments = words("bucket")
    assert python == "python"
    bucket = urlsplit(SERVICES["mlflow"]["environment"]["MLFLOW_ARTIFACTS_DESTINATION"]).netloc
    arguments[-1] += f"print(s3.head_bucket(Bucket={bucket!r})['ResponseMetadata']['HTTPStatusCode'])"
    for _ in range(2):
        assert end(begin(*arguments, env=env))[:2] == (0, "200\n")


def test_image_installs_by_hash_without_developer_tools():
    installs = re.findall(r"pip install [^;&\n]*", "\n".join(LINES))
    from_locks = [line for line in installs if " -r " in line]
    assert len(from_locks) == 3
    assert all("--require-hashes" in line and "--no-deps" in line for line in from_locks)
    locks = {line.split(" -r ")[1].strip().strip('"') for line in from_locks}
    assert locks == {"requirements.lock", "postgres.lock", "requirements-$TORCH.lock"}
    assert "ARG TORCH=cpu" in LINES
    developers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "dev"
    ]
    removed = re.search(r"pip uninstall --yes (.*)", "\n".join(LINES))[1].split()
    assert {"pytest", "ruff"} <= {*removed} <= {Requirement(each).name for each in developers}
