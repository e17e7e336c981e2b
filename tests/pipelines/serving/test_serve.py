"""The verb: what it makes of its command line, what it refuses before anything starts, and what it tells."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
from kept import export_run

from infra.errors import InputError
from infra.fields import from_plain
from infra.ray import session
from pipelines import serve
from pipelines.serve import ServeOptions, settings_of
from pipelines.serving import running
from pipelines.serving.deployment import application, build
from pipelines.serving.guard import digest
from pipelines.serving.schema import Described
from pipelines.serving.settings import Limits, Replicas, Settings

TOKEN = "a-token-of-some-length"


@pytest.fixture(autouse=True)
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty home, no token, and no Ray."""

    def no_ray(**_: object) -> None:
        raise AssertionError("Ray begins")

    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv(serve.TOKEN, raising=False)
    monkeypatch.setenv("RAY_SERVE_LOG_TO_STDERR", "0")
    monkeypatch.setattr(session, "PrivateRay", no_ray)


def said(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the command says as it ends with 2."""
    monkeypatch.setattr(sys, "argv", ["serve", *words])
    with pytest.raises(SystemExit) as ended:
        serve.main()
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--host", "0.0.0.0"], "--host 0.0.0.0: other machines reach it; give a token (--token-file"),
        (["x", "--host", "::"], "--host ::: other machines reach it"),
        (["x", "--port", "99999"], "port 99999 of 127.0.0.1 cannot be had"),
        (["x", "--port", "-1"], "port -1 of 127.0.0.1 cannot be had"),
        (["x", "--host", "203.0.113.1", "--open"], "port 8000 of 203.0.113.1 cannot be had"),
        (["x", "--route", "a"], "--route 'a' must be a path that begins with /"),
        (["x", "--name", ""], "--name must not be empty"),
        (["x", "--token-file", "none"], "--token-file none: cannot be read"),
        (["x", "--max-batch", "0"], "--max-batch must be at least 1, not 0"),
        (["x", "--replicas", "0"], "--replicas must be at least 1, not 0"),
        (["x", "--max-body-mib", "512"], "--max-bodies-mib 256 is less than one request may bring"),
        (["x", "--token", TOKEN], "--token"),
    ],
)
def test_what_cannot_be_is_refused_before_ray_begins(words, message, capsys, monkeypatch):
    assert message in said(words, capsys, monkeypatch)


def test_a_port_that_is_taken_is_said(capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = ["x", "--port", str(taken.getsockname()[1])]
        assert "cannot be had: [Errno 98] Address already in use; choose another with --port" in said(
            words, capsys, monkeypatch
        )
    place = running.Place(host="127.0.0.1", port=0, route="/", name="x")
    assert running.free_place(place).port > 0


def test_without_ray_serve_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    assert "`serve` needs Ray Serve: pip install 'polypool[serve]'" in said(["x"], capsys, monkeypatch)


@pytest.mark.parametrize(
    "token", ["short", "a token of words with spaces", "ein-schlüssel-mit-umlaut", "a" * 9]
)
def test_a_token_that_is_none_is_refused(token, tmp_path, monkeypatch, capsys):
    file = tmp_path / "token"
    file.write_text(token + "\n")
    message = said(["x", "--token-file", str(file)], capsys, monkeypatch)
    assert f"{file}: a token has at least 16 characters" in message
    assert token not in message
    monkeypatch.setenv(serve.TOKEN, token)
    assert f"{serve.TOKEN}: a token has at least 16 characters" in said(["x"], capsys, monkeypatch)


def test_a_token_stays_here(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert settings_of(ServeOptions(run_id="x")).token == ""
    from_file = settings_of(ServeOptions(run_id="x", token_file=file))
    monkeypatch.setenv(serve.TOKEN, TOKEN)
    assert settings_of(ServeOptions(run_id="x")).token == from_file.token == digest(TOKEN)
    assert TOKEN not in json.dumps(asdict(from_file))


def test_replicas_are_told_what_was_typed(tmp_path, monkeypatch):
    options = ServeOptions(run_id="x", split="val", limits=Limits(max_k=3), replicas=Replicas(replicas=2))
    settings = settings_of(options)
    assert from_plain(Settings, json.loads(json.dumps(asdict(settings)))) == settings
    assert (settings.split, settings.limits.max_k, settings.replicas.replicas) == ("val", 3, 2)
    assert (settings.home, settings.source) == (str(tmp_path), "x")
    assert settings.tracking == f"sqlite:///{tmp_path}/mlflow.db"
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    for word in ("model", "./model", str(tmp_path / "model")):
        assert Path(settings_of(ServeOptions(run_id=word)).source).resolve() == tmp_path / "model"
    assert settings_of(ServeOptions(run_id="s3://bucket/model")).source == "s3://bucket/model"


def test_a_configuration_of_ray_serves_is_held_to_the_same_fields(monkeypatch):
    args = {"source": "x", "replicas": {"replicas": 2}, "limits": {"max_queued": 7}}
    made, same = application(args), build(from_plain(Settings, args))
    for app in (made, same):
        deployment = app._bound_deployment
        replica = deployment.init_args[0]._bound_deployment
        assert replica.num_replicas == 2
        assert replica.max_queued_requests == 7
        assert replica._deployment_config.max_ongoing_requests == 64
        assert deployment.init_args[1]["token"] == ""
    monkeypatch.setenv(serve.TOKEN, TOKEN)
    assert application(args)._bound_deployment.init_args[1]["token"] == digest(TOKEN)
    with pytest.raises(InputError, match="unknown field 'sorce'"):
        application({"sorce": "x"})


def test_what_is_served_is_told_with_how_to_ask(words_run, tmp_path):
    settings = settings_of(ServeOptions(run_id=str(export_run(words_run, tmp_path))))
    described, notes = serve.examined(settings)
    (note,) = notes
    assert note.startswith("no images are taken, features alone: ")
    told = serve._how("http://127.0.0.1:8000", described, token="$TOKEN").splitlines()
    assert told[0] == "http://127.0.0.1:8000  (/embed, /score, /search; Ctrl-C ends it)"
    assert told[1].startswith(
        "curl http://127.0.0.1:8000/embed -H 'Content-Type: application/json' -H \"Author"
    )
    asks = json.loads(told[1].rpartition(" -d ")[2].strip("'"))
    assert asks == {"rows": [{"text": "a dog on the grass"}]}


@pytest.mark.parametrize("from_file", [False, True])
def test_the_terminal_says_where_it_is_and_replicas_inherit_no_token(
    from_file, tmp_path, monkeypatch, capsys
):
    served: list[Settings] = []

    @contextmanager
    def begun(settings, place, opened, *, open_to_all):
        assert serve.TOKEN not in os.environ, "what Ray starts would have it"
        served.append(settings)
        yield place.address

    described = Described.model_construct(
        recipe="tiny", task="vqa", aggregator="gpo", source="x", routes=["answer"], features=10
    )
    monkeypatch.setattr(running, "running", begun)
    monkeypatch.setattr(running, "wait", lambda name: None)
    monkeypatch.setattr(running, "free_place", lambda place: place)
    monkeypatch.setattr(session, "ray_beside", nullcontext)
    monkeypatch.setattr(session, "ray_session", nullcontext)
    monkeypatch.setattr(serve, "examined", lambda settings: (described, ["there is no search: gone"]))
    (tmp_path / "a token").write_text(TOKEN)
    if not from_file:
        monkeypatch.setenv(serve.TOKEN, TOKEN)
    serve.serve(ServeOptions(run_id="x", token_file=tmp_path / "a token" if from_file else None))
    note, what, address, curl = capsys.readouterr().out.splitlines()
    assert (note, what) == ("note: there is no search: gone", "tiny · vqa · gpo · x: 1 being loaded ...")
    assert address == "http://127.0.0.1:8000  (/answer; Ctrl-C ends it)"
    sends = f"$(cat '{tmp_path}/a token')" if from_file else f"${serve.TOKEN}"
    assert f'"Authorization: Bearer {sends}"' in curl
    assert curl.endswith(""" -d '{"rows": [{"features": [[... 10 numbers], ...], "text": "..."}]}'""")
    assert [settings.token for settings in served] == [digest(TOKEN)]
