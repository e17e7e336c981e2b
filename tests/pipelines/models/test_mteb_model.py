"""`MtebModel` on batches in the format that mteb documents; mteb itself is not needed."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from corpora import make_corpus, make_questions
from PIL import Image
from searchable import untrained, with_clips, with_pictures

from polypool.infra.errors import InputError
from polypool.pipelines.data.extraction import FileFeatures
from polypool.pipelines.models.mteb import MtebModel
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
    """Return batches like those of mteb's loaders, with an unused column."""
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
        ({"aggregator": "late", "similarity": "wti"}, (5, 4, 17)),
        ({"aggregator": "probabilistic", "similarity": "csd"}, (5, 2, 16)),
    ],
    ids=["vectors", "sets", "a similarity of sides", "distributions"],
)
def test_embeddings_and_scores_match_trained_model(run, change, shape):
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


def test_zero_shot_tasks_refuse_set_embeddings(run):
    vectors = MtebModel(untrained(run))
    assert encoded(vectors, "text", TEXTS, ZERO_SHOT).shape == (3, 16)
    sets = MtebModel(untrained(replace(run, aggregator="slots(k=3)", similarity="smooth_chamfer")))
    refused = r"Labels: a task of type ZeroShot.* has shape \(3, 16\); give it retr"
    with pytest.raises(InputError, match=refused):
        encoded(sets, "text", TEXTS, ZERO_SHOT)


def test_videos_are_read_from_bytes_or_path(tmp_path):
    model = MtebModel(untrained(with_clips(tmp_path)))
    files = files_of(model)
    made = FileFeatures.for_model(model.trained.adapter)
    expected = model.trained.encode_visual([made.of(file, video=True) for file in files])
    made.close()
    stored = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    stored[1] = {"bytes": None, "path": str(files[1])}
    torch.testing.assert_close(encoded(model, "video", stored), expected)
    with pytest.raises(InputError, match=r"clip\.mp4: .*give a valid video"):
        encoded(model, "video", [{"bytes": b"no video", "path": "clip.mp4"}])
    with pytest.raises(InputError, match="mteb gave a Tensor for an image or video; expected"):
        encoded(model, "video", [torch.zeros(3, 3, 8, 8)])
    with pytest.raises(InputError, match=r"a batch of mteb has image; this model makes .* of one video"):
        encoded(model, "image", [Image.new("RGB", (8, 8))])
    model.close()


def test_batches_need_exactly_one_supported_modality(run):
    model = MtebModel(untrained(run))
    both = {"text": ["a dog"], "image": [Image.new("RGB", (8, 8))]}
    for batch, has in ((both, "text and image"), ({"audio": [0]}, "neither text, image nor video")):
        with pytest.raises(InputError, match=f"a batch of mteb has {has}; this model .* one text, or of"):
            model.encode([batch], task_metadata=RETRIEVAL)


def test_unsupported_models_are_refused_at_creation(run, tmp_path):
    (tmp_path / "questions").mkdir()
    asked = make_questions(tmp_path / "questions")
    with pytest.raises(InputError, match=r"the task 'vqa.*' answers questions, and mteb compares embeddings"):
        MtebModel(untrained(asked))
    with pytest.raises(InputError, match=r"a PairEncoder with 'score_attention\(heads=2\)' has no"):
        MtebModel(untrained(replace(run, aggregator="score_attention(heads=2)")))
    unknown = make_corpus(tmp_path, train=4, val=2, test=2)
    with pytest.raises(InputError, match=r"none can be described here: .*not from `polypool extract`"):
        MtebModel(untrained(unknown))
