from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polypool.infra.errors import FaultError, InputError
from polypool.pipelines.serving.schema import Settings
from polypool.pipelines.serving.service import ModelRequest, Service

TEXTS = ["a dog and a cat", "one car , tree", "a bird", "the horse beside the house near a boat and a dog"]


def sets(width: int, count: int = 5) -> list[np.ndarray]:
    """Return feature sets of 1, 2, 3, ... elements."""
    return [np.random.default_rng(n).random((1 + n, width), dtype=np.float32) for n in range(count)]


@pytest.mark.parametrize(
    "change",
    [
        {"aggregator": "late", "similarity": "wti"},
        {"aggregator": "probabilistic", "similarity": "csd", "objective": "pcmepp"},
    ],
    ids=lambda change: change.get("aggregator", "mean"),
)
def test_answers_do_not_depend_on_batch(words_run, of_run, change):
    service = of_run(replace(words_run, **change))
    asked = [ModelRequest(route="embed", features=x) for x in sets(service.described.features)]
    asked += [ModelRequest(route="embed", text=text) for text in TEXTS]
    asked += [ModelRequest(route="score", text=TEXTS[0], features=asked[0].features)]
    asked += [ModelRequest(route="search", text=text, k=k) for text in TEXTS for k in (1, 4)]
    asked += [ModelRequest(route="search", features=asked[1].features, k=2)]
    together = service.answer(asked)
    for each, beside in zip(asked, together, strict=True):
        (alone,) = service.answer([each])
        assert alone.keys() == beside.keys()
        if each.route == "search":
            assert [hit["id"] for hit in alone["hits"]] == [hit["id"] for hit in beside["hits"]]
            assert len(alone["hits"]) == each.k
        else:
            (value,), (other,) = alone.values(), beside.values()
            assert np.shape(value) == np.shape(other)
            np.testing.assert_allclose(value, other, atol=1e-5)
    shape = np.shape(together[2]["embedding"])
    assert len(shape) == len(service.described.shape)
    assert all(said in (-1, is_there) for said, is_there in zip(service.described.shape, shape, strict=True))
    if change.get("aggregator") == "late":
        assert shape[0] == 3, "padding must not be returned as vectors"


def test_model_without_embeddings_scores_pairs(words_run, of_run):
    service = of_run(replace(words_run, aggregator="score_attention(heads=2)"))
    assert (service.described.routes, service.described.shape) == (["score", "search"], [])
    service.check()
    x = sets(service.described.features)[3]
    (score,) = service.answer([ModelRequest(route="score", text=TEXTS[0], features=x)])
    of_pair = service.trained.scores([x], TEXTS[:1])
    assert score["score"] == pytest.approx(float(of_pair), abs=1e-5)


def test_failed_row_does_not_affect_other_rows(pictures, monkeypatch):
    good, bad = ModelRequest(route="embed", text="a dog"), ModelRequest(route="embed", image=b"no picture")
    first, wrong, last = pictures.answer([good, bad, good])
    np.testing.assert_array_equal(first["embedding"], last["embedding"])
    assert isinstance(wrong, InputError)
    assert str(wrong).startswith("the file that you sent: does not decode as an image")

    encode = type(pictures.trained).encode_text

    def breaks(trained, texts):
        if "cat" in texts:
            raise ZeroDivisionError
        return encode(trained, texts)

    monkeypatch.setattr(type(pictures.trained), "encode_text", breaks)
    first, wrong = pictures.answer([good, ModelRequest(route="embed", text="cat")])
    assert first["embedding"].shape == (16,)
    assert isinstance(wrong, FaultError)


def test_search_is_unavailable_without_corpus(words_run, of_run, tmp_path):
    here = of_run(words_run)
    assert here.described.routes == ["embed", "score", "search"]
    assert "/" not in here.described.source, "the source must not be a path"
    assert (here.described.split, here.described.items) == ("test", 20)
    assert here.described.digests.keys() == {"corpus", "features"}
    (note,) = here.notes
    assert note.startswith("images are not accepted, only features: ")
    assert of_run(words_run, search=False, images=False).notes == []
    for folder in ("corpus", "features"):
        (tmp_path / folder).mkdir()
    run_json = f"{here.settings.source}/run.json"
    with open(run_json) as file:
        text = file.read()
    Path(f"{here.settings.source}/digests.json").unlink()  # checksum of the original run.json
    with open(run_json, "w") as file:
        file.write(text.replace(words_run.data.corpus, str(tmp_path / "corpus")))
    elsewhere = Service.load(Settings(source=here.settings.source))
    assert elsewhere.described.routes == ["embed", "score"]
    assert elsewhere.described.digests == {}
    assert any("search is unavailable" in note and "corpus" in note for note in elsewhere.notes)
    with pytest.raises(InputError, match="corpus"):
        Service.load(Settings(source=here.settings.source, split="test"))
