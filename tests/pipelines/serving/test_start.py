from __future__ import annotations

import json
import os
import socket
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from verbs import exit_code

from polypool.infra.errors import AwayError, InputError
from polypool.infra.fields import from_plain
from polypool.pipelines.commands.serve import main
from polypool.pipelines.serving import service, start
from polypool.pipelines.serving.schema import Address, Limits, ModelInfo, Replicas, Settings
from polypool.pipelines.serving.start import application, build, complete

TOKEN = "a-token-of-some-length"
DIGEST = sha256(TOKEN.encode()).hexdigest()


@pytest.fixture(autouse=True)
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set an empty home and no token, and fail if Ray starts."""

    def no_ray(**_: object) -> None:
        raise AssertionError("Ray begins")

    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv(start.TOKEN, raising=False)
    monkeypatch.setenv("RAY_SERVE_LOG_TO_STDERR", "0")
    monkeypatch.setattr(start, "ray_session", no_ray)


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error that the command prints."""
    assert exit_code(main, *words) == 2
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--host", "0.0.0.0"], "--host 0.0.0.0: other machines reach it; give a token (--token-file"),
        (["x", "--port", "99999"], "cannot listen on port 99999 of 127.0.0.1"),
        (["x", "--host", "203.0.113.1", "--open"], "cannot listen on port 8000 of 203.0.113.1"),
        (["x", "--route", "a"], "--route 'a' must be a path that starts with /"),
        (["x", "--token-file", "none"], "--token-file none: cannot be read"),
        (["x", "--max-batch", "0"], "--max-batch must be at least 1, not 0"),
        (["x", "--route", "/a"], "--route is for services on a Ray cluster; give --replicas"),
        (["x", "--token", TOKEN], "--token"),
    ],
)
def test_invalid_options_are_refused_before_ray_starts(words, message, capsys):
    assert message in refusal(words, capsys)


def made(token_file: Path | None = None, **fields: object) -> Settings:
    """Return the settings that a replica receives."""
    place = Address(host="127.0.0.1", port=0)
    return complete(Settings(**{"source": "x", **fields}), place, token_file=token_file)


@pytest.mark.parametrize("token", ["short", "a token of words with spaces", "ein-schlüssel-mit-umlaut"])
def test_invalid_token_is_refused(token, tmp_path, monkeypatch, capsys):
    file = tmp_path / "token"
    file.write_text(token + "\n")
    message = refusal(["x", "--token-file", str(file)], capsys)
    assert f"{file}: a token needs at least 16 ASCII characters" in message
    assert token not in message
    monkeypatch.setenv(start.TOKEN, token)
    assert f"{start.TOKEN}: a token needs at least 16 ASCII characters" in refusal(["x"], capsys)


def test_settings_store_only_hash_of_token(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert made().token == ""
    from_file = made(token_file=file)
    monkeypatch.setenv(start.TOKEN, TOKEN)
    assert made().token == from_file.token == DIGEST
    assert TOKEN not in json.dumps(asdict(from_file))


def test_replica_settings_round_trip_with_resolved_paths(tmp_path, monkeypatch):
    found = made(split="val", limits=Limits(max_k=3), replicas=Replicas(replicas=2))
    assert from_plain(Settings, json.loads(json.dumps(asdict(found)))) == found
    assert (found.split, found.limits.max_k, found.replicas.replicas) == ("val", 3, 2)
    assert (found.home, found.source) == (str(tmp_path), "x")
    assert found.tracking == f"sqlite:///{tmp_path}/mlflow.db"
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    for word in ("model", "./model", str(tmp_path / "model")):
        assert Path(made(source=word).source).resolve() == tmp_path / "model"
    assert made(source="s3://bucket/model").source == "s3://bucket/model"


def test_ray_serve_config_is_validated_like_settings(monkeypatch):
    args = {"source": "x", "replicas": {"replicas": 2}, "limits": {"max_queued": 7}}
    for app in (application(args), build(from_plain(Settings, args))):
        replica = app._bound_deployment
        assert replica.num_replicas == 2
        assert replica.max_queued_requests == 7
        assert replica._deployment_config.max_ongoing_requests == 64
        assert replica.init_args[0]["token"] == ""
    monkeypatch.setenv(start.TOKEN, TOKEN)
    assert application(args)._bound_deployment.init_args[0]["token"] == DIGEST
    with pytest.raises(InputError, match="unknown field 'sorce'"):
        application({"sorce": "x"})


@pytest.mark.parametrize(("from_file", "cluster"), [(False, True), (True, False)])
def test_token_is_hidden_from_replicas_and_terminal(from_file, cluster, tmp_path, monkeypatch, capsys):
    served: list[Settings] = []

    @contextmanager
    def begun(settings, place):
        assert start.TOKEN not in os.environ, "Ray's processes must not inherit the token"
        served.append(settings)
        yield

    monkeypatch.setenv("RAY_ADDRESS", "cluster:6379" if cluster else "local")
    monkeypatch.setattr(start, "running", begun)
    monkeypatch.setattr("ray.serve.status", lambda: SimpleNamespace(applications={}))

    described = ModelInfo.model_construct(
        title="tiny · gpo · seed 0",
        task="vqa",
        aggregator="gpo",
        source="x",
        routes=["answer"],
        features=10,
        page=False,
    )
    loaded = SimpleNamespace(described=described, notes=["search is unavailable: gone"])
    monkeypatch.setattr(Address, "listen", lambda place: (socket.socket(), place))
    monkeypatch.setattr(start, "ray_session", nullcontext)
    monkeypatch.setattr(service.Service, "load", lambda settings: loaded)
    monkeypatch.setattr(start, "resolve_run", lambda uri, named: {"latest": "an id"}[named])
    (tmp_path / "a token").write_text(TOKEN)
    if not from_file:
        monkeypatch.setenv(start.TOKEN, TOKEN)
    with pytest.raises(AwayError, match="stopped by another process"):
        start.serve(
            Settings(source="latest", replicas=Replicas(replicas=1)),
            Address(host="127.0.0.1", port=8000),
            token_file=tmp_path / "a token" if from_file else None,
            open_to_all=False,
        )
    curl = capsys.readouterr().out.splitlines()[-1]
    sends = f"$(cat '{tmp_path}/a token')" if from_file else f"${start.TOKEN}"
    assert f'"Authorization: Bearer {sends}"' in curl
    assert [(each.token, each.page, each.source) for each in served] == [(DIGEST, False, "an id")]
