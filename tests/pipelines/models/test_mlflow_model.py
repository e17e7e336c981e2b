"""Models exported to MLflow: logged metrics, registration, and predictions of the pyfunc model."""

import ast
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from corpora import make_corpus, make_questions
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import load_model
from PIL import Image
from tiny_models import save_vit
from untrained_runs import track_untrained
from verbs import called

from polypool.infra.registry import TASKS
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.models.exporting import export_to_mlflow
from polypool.pipelines.models.trained import load
from polypool.tasks.run import Run
from polypool.tasks.scoring.records import VERSION_TAG


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYPOOL_HOME", str(folder))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        yield folder


@pytest.fixture(scope="module")
def run(home) -> Run:
    return make_corpus(home)


@pytest.fixture(scope="module")
def kept(home, run) -> str:
    """A run with metrics and data sets, to be exported."""
    run_id = track_untrained(run)
    tracker = Tracker.attach(tracking_uri(home), run_id, running=False)
    tracker.inputs(TASKS.build(run.task, run).sources())
    tracker.tags({f"{VERSION_TAG}{name}": "1" for name in ("whole", "val/whole", "other/whole")})
    tracker.log({"whole/rsum": 1.0, "train/loss": 5.0}, step=1)
    scores = {"whole/rsum": 60.0, "test/score": 60.0, "dev/best_rsum": 50.0, "val/whole/rsum": 40.0}
    tracker.log({**scores, "other/whole/rsum": 30.0}, step=2)
    return run_id


@pytest.fixture(scope="module")
def model(kept) -> str:
    return export_to_mlflow(kept, registered_name="shapes", alias="champion")[0]


@pytest.fixture
def features() -> list[np.ndarray]:
    return [np.random.default_rng(n).random((3 + n, 10), dtype=np.float32) for n in range(2)]


def test_pyfunc_predictions_match_trained_model(home, kept, model, features):
    trained = load(kept)
    served = load_model("models:/shapes@champion")
    texts = ["a dog and a cat", "a red car"]
    sets = [x_NF.tolist() for x_NF in features]
    found = served.predict(pd.DataFrame({"features": [*sets, None, None], "text": [None, None, *texts]}))
    assert found["score"].isna().all()
    vectors = np.array(found["embedding"].tolist(), dtype=np.float32)
    np.testing.assert_allclose(vectors[:2], trained.encode_visual(features).cpu(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(vectors[2:], trained.encode_text(texts).cpu(), rtol=1e-5, atol=1e-6)
    scores = served.predict(pd.DataFrame({"features": sets, "text": texts}))["score"].astype(float)
    np.testing.assert_allclose(scores, trained.scores(features, texts).diag().cpu(), rtol=1e-5, atol=1e-6)
    assert served.metadata.model_id == model.removeprefix("models:/")
    assert served.metadata.run_id == kept
    schema = [(of.name, of.required) for of in served.metadata.get_input_schema()]
    assert schema == [("features", False), ("text", False)]


def test_logged_model_has_run_metrics_per_dataset(home, run, kept, model):
    client = Tracker.attach(tracking_uri(home), kept, running=False)._client
    found = client.get_logged_model(model.removeprefix("models:/"))
    assert (found.status, found.source_run_id, found.name) == ("READY", kept, run.recipe)
    assert {(of.key, of.value, of.dataset_name) for of in found.metrics} == {
        ("whole/rsum", 60.0, "tiny/test"),
        ("test/score", 60.0, "tiny/test"),
        ("dev/best_rsum", 50.0, "tiny/val"),
        ("val/whole/rsum", 40.0, "tiny/val"),
        ("other/whole/rsum", 30.0, None),
    }
    whole = client.get_run(kept)
    assert [of.model_id for of in whole.outputs.model_outputs] == [found.model_id]
    assert [point.value for point in client.get_metric_history(kept, "whole/rsum")] == [1.0, 60.0]
    assert found.params["aggregator"] == "mean"
    assert json.loads(found.tags["mlflow.modelVersions"])[0]["name"] == "shapes"
    assert found.tags["mlflow.source.type"] == "LOCAL"
    assert "mlflow.runName" not in found.tags
    version = client.get_model_version_by_alias("shapes", "champion")
    assert (int(version.version), version.run_id, version.source) == (1, kept, model)


def test_alias_moves_to_new_version(home, kept, model):
    words = ("--mlflow", "--registered-name", "shapes", "--alias", "champion")
    _, said, _ = called("export", kept, *words)
    assert "registered as version 2 of shapes, champion" in said
    assert "mlflow models serve -m models:/shapes@champion --env-manager local" in said
    client = Tracker.attach(tracking_uri(home), kept, running=False)._client
    assert client.get_model_version_by_alias("shapes", "champion").version in (2, "2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say where to: --out FOLDER, or --mlflow"),
        (["--out", "x", "--alias", "a"], "give --mlflow, too"),
        (["--mlflow", "--alias", "a"], "name it by --registered-name"),
        (["--mlflow", "--registered-name", "n", "--alias", "v1"], "--alias 'v1': "),
        (["--mlflow", "--registered-name", "n", "--alias", "a b"], "--alias 'a b': MLflow takes letters"),
        (["--mlflow", "--registered-name", "a/b"], "--registered-name 'a/b': a model's name"),
    ],
)
def test_invalid_export_flags_exit_2_with_message(kept, words, message):
    code, _, error = called("export", kept, *words)
    assert (code, message in error) == (2, True), error


def test_logged_model_bundles_polypool_package(model):
    code = Path(download_artifacts(model)) / "code"
    assert [path.name for path in code.iterdir()] == ["polypool"]
    parts = {"aggregators", "encoders", "infra", "pipelines", "tasks", "__init__.py"}
    assert parts <= {path.name for path in (code / "polypool").iterdir()}
    assert (code / "polypool" / "pipelines" / "models" / "pyfunc.py").is_file()
    text = f"""
from mlflow.pyfunc import load_model
import sys
load_model({model!r})
print(*(module.__file__ for name, module in [*sys.modules.items()] if name.startswith("polypool.")))
"""
    env = os.environ | {"PYTHONPATH": str(code)}
    done = subprocess.run([sys.executable, "-c", text], cwd=code, env=env, capture_output=True, text=True)
    files = [*map(Path, done.stdout.split())]
    assert code / "polypool" / "tasks" / "__init__.py" in files, done.stderr
    nodes, names = [node for file in files for node in ast.parse(file.read_text()).body], set()
    for node in nodes:
        names |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        names |= {node.module} if isinstance(node, ast.ImportFrom) else set()
    imported = {name.partition(".")[0] for name in names} - {"polypool", *sys.stdlib_module_names}
    lines = (code.parent / "requirements.txt").read_text().splitlines()
    listed, of_module = {line.partition("==")[0] for line in lines}, packages_distributions()
    assert not {name for name in imported if listed.isdisjoint(of_module[name])}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"features": [[1.0] * 9], "text": None}, r"\(1, 9\); expected \(elements, 10\)"),
        ({"features": None, "text": None}, "row 0 has neither an image or video nor a text"),
    ],
)
def test_invalid_rows_raise_invalid_parameter_value(model, row, message):
    with pytest.raises(MlflowException, match=message) as error:
        load_model(model).predict(pd.DataFrame([row]))
    assert error.value.error_code == "INVALID_PARAMETER_VALUE"


@pytest.mark.parametrize(
    "aggregator", ["slots(k=2, heads=2, head_width=8)", "score_attention(heads=2)"], ids=["sets", "pairs"]
)
def test_pyfunc_supports_set_and_pair_models(run, aggregator, features):
    run_id = track_untrained(replace(run, aggregator=aggregator))
    served, trained = load_model(export_to_mlflow(run_id)[0]), load(run_id)
    row = {"features": features[0].tolist(), "text": "a dog and a cat"}
    (score,) = served.predict(pd.DataFrame([row]))["score"]
    assert score == pytest.approx(float(trained.scores(features[:1], [row["text"]])), rel=1e-5)
    if "slots" in aggregator:
        (vectors,) = served.predict(pd.DataFrame([{**row, "text": None}]))["embedding"]
        np.testing.assert_allclose(
            vectors, trained.encode_visual(features[:1])[0].cpu(), rtol=1e-5, atol=1e-6
        )
    else:
        with pytest.raises(MlflowException, match="text"):
            served.predict(pd.DataFrame([{"features": row["features"]}]))


def test_pyfunc_answers_match_trained_model(home, tmp_path):
    folder = tmp_path / "questions"
    folder.mkdir()
    run_id = track_untrained(make_questions(folder))
    served, trained = load_model(export_to_mlflow(run_id)[0]), load(run_id)
    width = trained.adapter.visual_dim
    images = [np.random.default_rng(n).random((3 + n, width), dtype=np.float32) for n in range(2)]
    questions = ["what is there?", "how many dogs?"]
    found = served.predict(pd.DataFrame({"features": [x.tolist() for x in images], "text": questions}))
    expected = trained.answers(images, questions)
    assert found["answer"].tolist() == [answer for answer, _ in expected]
    np.testing.assert_allclose(found["probability"], [share for _, share in expected], rtol=1e-5)


def test_pyfunc_accepts_base64_images(home, tmp_path):
    made = make_corpus(tmp_path / "corpus", images=tmp_path / "images", train=4, val=2, test=2)
    visual = f"patches(name='{save_vit(tmp_path / 'vit')}', width=8, size=32)"
    data, text = (
        replace(made.data, visual_augment="", text_augment=""),
        "bigru(width=8, embedding=8, min_count=1)",
    )
    run_id = track_untrained(replace(made, visual=visual, text=text, data=data))
    served, trained = load_model(export_to_mlflow(run_id)[0]), load(run_id)
    file = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(file)
    image = base64.b64encode(file.read_bytes()).decode()
    found = served.predict(pd.DataFrame({"image": [image, None], "text": [None, "a dog"]}))["embedding"]
    np.testing.assert_allclose(found[0], trained.encode_visual([file])[0].cpu(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], trained.encode_text(["a dog"])[0].cpu(), rtol=1e-5, atol=1e-6)
