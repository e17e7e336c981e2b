from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polypool.infra.errors import InputError
from polypool.pipelines.models.trained import load
from polypool.pipelines.serving.schema import Settings
from polypool.pipelines.serving.service import ModelRequest, Service

TEXTS = ["a dog and a cat", "one car , tree", "a bird", "the horse beside the house near a boat and a dog"]


def sets(width: int, count: int = 5) -> list[np.ndarray]:
    """Return sets of 1, 2, 3, ... elements."""
    return [np.random.default_rng(n).random((1 + n, width), dtype=np.float32) for n in range(count)]


@pytest.mark.parametrize(
    "change",
    [
        {"aggregator": "slots(k=2, heads=2, head_width=8)"},
        {"aggregator": "late", "similarity": "wti"},
        {"aggregator": "probabilistic", "similarity": "csd", "objective": "pcmepp"},
    ],
    ids=lambda change: change.get("aggregator", "mean"),
)
def test_an_answer_is_the_same_whoever_is_answered_beside(words_run, of_run, change):
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
        assert shape[0] == 3, "zeros that fill a set up are no vectors"


def test_questions_are_answered_and_pairs_scored(questions, words_run, of_run):
    assert questions.described.routes == ["answer"]
    trained, features = load(questions.settings.source), sets(questions.described.features, 4)
    asked = [ModelRequest(route="answer", text=t, features=x) for t, x in zip(TEXTS, features, strict=True)]
    found = [answer["answers"][0] for answer in questions.answer(asked)]
    expected = trained.answers(features, TEXTS)
    assert [answer["answer"] for answer in found] == [answer for answer, _ in expected]
    assert [answer["probability"] for answer in found] == pytest.approx([p for _, p in expected], abs=1e-5)
    service = of_run(replace(words_run, aggregator="score_attention(heads=2)"))
    assert (service.described.routes, service.described.shape) == (["score", "search"], [])
    service.check()
    x = sets(service.described.features)[3]
    (score,) = service.answer([ModelRequest(route="score", text=TEXTS[0], features=x)])
    of_pair = load(service.settings.source).scores([x], TEXTS[:1])
    assert score["score"] == pytest.approx(float(of_pair), abs=1e-5)


def test_where_the_corpus_is_elsewhere_there_is_no_search(words_run, of_run, tmp_path):
    here = of_run(words_run)
    assert here.described.routes == ["embed", "score", "search"]
    assert "/" not in here.described.source, "where it lies is nobody's business"
    assert (here.described.split, here.described.items) == ("test", 20)
    for folder in ("corpus", "features"):
        (tmp_path / folder).mkdir()
    run_json = f"{here.settings.source}/run.json"
    with open(run_json) as file:
        text = file.read()
    Path(f"{here.settings.source}/digests.json").unlink()  # of the file as it was
    with open(run_json, "w") as file:
        file.write(text.replace(words_run.data.corpus, str(tmp_path / "corpus")))
    elsewhere = Service.load(Settings(source=here.settings.source))
    assert elsewhere.described.routes == ["embed", "score"]
    with pytest.raises(InputError, match="corpus"):
        Service.load(Settings(source=here.settings.source, split="test"))
