"""A trained model as mteb asks it, by the batches that mteb documents; mteb itself is not needed."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from kept import export_run
from PIL import Image
from searchable import untrained, with_clips, with_pictures
from tiny_models import save_vit

import polypool
from polypool.infra.errors import InputError
from polypool.pipelines.data.extraction.file_features import FileFeatures
from polypool.pipelines.models.mteb import MtebModel, mteb_model
from polypool.pipelines.models.trained import load
from polypool.tasks.run import Run

RETRIEVAL = SimpleNamespace(name="Tiny", type="Any2AnyRetrieval", simplified_task_type="retrieval")
ZERO_SHOT = SimpleNamespace(
    name="Labels", type="ZeroShotClassification", simplified_task_type="classification"
)
TEXTS = ["a dog and a cat", "the car beside the boat", "one bird , tree"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return with_pictures(tmp_path_factory.mktemp("pictures"), train=8, val=4, test=5)


def files_of(model: MtebModel) -> list[Path]:
    corpus = model.trained.adapter.corpus
    return [corpus.image_path(item) for item in corpus.items("test")]


def in_batches(column: str, items: list, size: int = 2) -> list[dict[str, list]]:
    """Yield what a loader of mteb yields, with a column beside that says nothing."""
    return [
        {"id": [str(n) for n in range(start, start + size)], column: items[start : start + size]}
        for start in range(0, len(items), size)
    ]


def encoded(model: MtebModel, column: str, items: list, task: SimpleNamespace = RETRIEVAL) -> torch.Tensor:
    more = {"hf_split": "test", "hf_subset": "default", "prompt_type": None, "batch_size": 2}
    return model.encode(in_batches(column, items), task_metadata=task, **more)


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        ({}, (5, 16)),
        ({"aggregator": "slots(k=3)", "similarity": "smooth_chamfer"}, (5, 3, 16)),
        ({"aggregator": "late", "similarity": "maxsim"}, (5, 4, 16)),
        ({"aggregator": "late", "similarity": "wti"}, (5, 4, 17)),
        ({"aggregator": "probabilistic", "similarity": "csd"}, (5, 2, 16)),
    ],
    ids=["vectors", "sets", "sets of any size", "a similarity of sides", "distributions"],
)
def test_embeddings_and_scores_are_those_of_the_model(run, change, shape):
    model = MtebModel(untrained(replace(run, **change)))
    files = files_of(model)
    pictures = [Image.open(file) for file in files]
    visual, text = encoded(model, "image", pictures), encoded(model, "text", TEXTS)
    made = FileFeatures.for_model(model.trained.adapter)
    features = [made.of(file, video=False) for file in files]
    assert visual.shape == shape
    torch.testing.assert_close(visual[..., :16], model.trained.encode_visual(features))
    torch.testing.assert_close(text[..., :16], model.trained.encode_text(TEXTS))
    sim_VT = model.trained.scores(features, TEXTS)
    torch.testing.assert_close(model.similarity(visual, text), sim_VT)
    torch.testing.assert_close(model.similarity(text.numpy(), visual.numpy()), sim_VT.T)
    torch.testing.assert_close(model.similarity_pairwise(visual[:3], text), sim_VT[:3].diagonal())


def test_what_mteb_multiplies_itself_is_refused_of_sets_alone(run):
    vectors = MtebModel(untrained(run))
    assert encoded(vectors, "text", TEXTS, ZERO_SHOT).shape == (3, 16)
    sets = MtebModel(untrained(replace(run, aggregator="slots(k=3)", similarity="smooth_chamfer")))
    refused = r"Labels: a task of type ZeroShot.* has shape \(3, 16\); give it retr"
    with pytest.raises(InputError, match=refused):
        encoded(sets, "text", TEXTS, ZERO_SHOT)


def test_an_exported_model_needs_no_store(tmp_path):
    run = with_pictures(tmp_path, train=8, val=4, test=3)
    model = MtebModel(untrained(run))
    pictures = [Image.open(file) for file in files_of(model)]
    expected = encoded(model, "image", pictures)
    folder = tmp_path / "model"
    folder.mkdir()
    export_run(run, folder)
    (folder / "digests.json").unlink()  # the files are changed below
    for name in ("cells", "corpus"):
        shutil.rmtree(tmp_path / name)
    torch.testing.assert_close(encoded(MtebModel(load(folder)), "image", pictures), expected)
    assets = json.loads((folder / "assets.json").read_text())
    for change, message in (
        ({"dim": 0}, "feature_source.dim must be at least 1, not 0"),
        ({"dtype": "int8"}, "feature_source.dtype must be one of float16, float32"),
        ({"source": []}, "feature_source.source must be a mapping"),
        ({"more": 1}, "feature_source.*more"),
    ):
        damaged = assets | {"feature_source": assets["feature_source"] | change}
        (folder / "assets.json").write_text(json.dumps(damaged))
        with pytest.raises(InputError, match=rf"assets\.json: .*{message}"):
            load(folder)


def test_pictures_of_any_mode_are_read_as_their_files_are(run, tmp_path):
    model = MtebModel(untrained(run))
    x_HW4 = np.random.default_rng(0).integers(0, 256, (20, 30, 4), np.uint8)
    transparent = Image.fromarray(x_HW4, "RGBA")
    pictures = [transparent, transparent.convert("L"), transparent.convert("P")]
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for picture, file in zip(pictures, files, strict=True):
        picture.save(file)
    made = FileFeatures.for_model(model.trained.adapter)
    expected = model.trained.encode_visual([made.of(file, video=False) for file in files])
    torch.testing.assert_close(encoded(model, "image", pictures), expected)


def test_a_model_that_reads_pixels_gets_the_pictures_themselves(tmp_path):
    made = make_corpus(tmp_path / "corpus", images=tmp_path / "images", train=4, val=2, test=2)
    visual = f"patches(name={save_vit(tmp_path / 'vit')!r}, width=8, size=32)"
    data = replace(made.data, visual_augment="", text_augment="")
    text = "bigru(width=8, embedding=8, min_count=1)"
    model = MtebModel(untrained(replace(made, visual=visual, text=text, data=data)))
    x_HW3 = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(x_HW3).save(file := tmp_path / "a.png")
    embedding = encoded(model, "image", [Image.fromarray(x_HW3)] * 3)
    torch.testing.assert_close(embedding, model.trained.encode_visual([file] * 3))


def test_videos_are_read_from_their_bytes_or_their_file(tmp_path):
    model = MtebModel(untrained(with_clips(tmp_path)))
    files = files_of(model)
    made = FileFeatures.for_model(model.trained.adapter)
    expected = model.trained.encode_visual([made.of(file, video=True) for file in files])
    made.close()
    stored = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    stored[1] = {"bytes": None, "path": str(files[1])}
    torch.testing.assert_close(encoded(model, "video", stored), expected)
    with pytest.raises(InputError, match=r"clip\.mp4: .*give a video that can be played"):
        encoded(model, "video", [{"bytes": b"no video", "path": "clip.mp4"}])
    with pytest.raises(InputError, match="mteb gave a Tensor for an image or video; expected"):
        encoded(model, "video", [torch.zeros(3, 3, 8, 8)])
    with pytest.raises(InputError, match=r"a batch of mteb has image; this model makes .* of one video"):
        encoded(model, "image", [Image.new("RGB", (8, 8))])
    model.close()


def test_what_cannot_be_one_embedding_is_said(run):
    model = MtebModel(untrained(run))
    both = {"text": ["a dog"], "image": [Image.new("RGB", (8, 8))]}
    for batch, has in ((both, "text and image"), ({"audio": [0]}, "neither text, image nor video")):
        with pytest.raises(InputError, match=f"a batch of mteb has {has}; this model .* one text, or of"):
            model.encode([batch], task_metadata=RETRIEVAL)
    with pytest.raises(InputError, match=r"precision='int8': embeddings are float32; leave encode_kwargs"):
        model.encode([{"text": ["a dog"]}], task_metadata=RETRIEVAL, precision="int8")


def test_what_has_no_embeddings_is_refused_before_anything_is_encoded(run, tmp_path):
    (tmp_path / "questions").mkdir()
    asked = make_questions(tmp_path / "questions")
    with pytest.raises(InputError, match=r"the task 'vqa.*' answers questions, and mteb compares embeddings"):
        MtebModel(untrained(asked))
    with pytest.raises(InputError, match=r"a PairEncoder with 'score_attention\(heads=2\)' has no"):
        MtebModel(untrained(replace(run, aggregator="score_attention(heads=2)")))
    unknown = make_corpus(tmp_path, train=4, val=2, test=2)
    with pytest.raises(InputError, match=r"none can be described here: .*not from `polypool extract`"):
        MtebModel(untrained(unknown))


def test_without_mteb_it_is_said_how_it_is_had(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(InputError, match=r"mteb' cannot be imported .*pip install 'polypool\[mteb\]'"):
        polypool.mteb_model(export_run(run, tmp_path))
    assert polypool.mteb_model is mteb_model
