"""Example scripts for other frameworks, run with Flickr8k captions and MiniLM."""

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

pytestmark = pytest.mark.slow


def run(name: str, *words: object, shared: Path, folder: Path) -> str:
    data = shared / "data"
    given = [data / "models" / "minilm-l6", data / "flickr8k" / "Flickr8k.token.txt", *words]
    command = [sys.executable, str(ROOT / "docs/examples" / name), *map(str, given)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_torch_loop_example_lowers_its_loss(shared, tmp_path):
    losses = [float(line) for line in run("torch_loop.py", 4, shared=shared, folder=tmp_path).split()]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


def test_sentence_transformers_example_trains_and_reloads(shared, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    run("sentence_pooling.py", tmp_path / "out", 2, shared=shared, folder=tmp_path)
    model = st.SentenceTransformer(str(tmp_path / "out"), device="cpu", trust_remote_code=True)
    assert type(model[1]).__module__ == "polypool.integrations.sentence_transformers"
    texts = ["a dog runs", "a dog is running", "two cars are parked"]
    dog, hound, car = model.encode(texts, normalize_embeddings=True)
    assert dog @ hound > dog @ car
