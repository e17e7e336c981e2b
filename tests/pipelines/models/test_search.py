"""Search by text, file and id with every kind of model, compared with the scores of the split."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import hgr, make_corpus
from pictures import noise
from PIL import Image
from searchable import untrained, with_clips, with_pictures
from tiny_models import save_vit
from untrained_runs import track_untrained
from verbs import called

from polypool.infra.errors import InputError
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.commands.search import search
from polypool.pipelines.models import search as searches
from polypool.pipelines.models.search import (
    EmbeddingGallery,
    Exact,
    Faiss,
    PairGallery,
    Query,
    top_k,
)
from polypool.pipelines.models.trained import load
from polypool.tasks.inputs.pairs import Pairs

WORDS = "bigru(width=16, embedding=8, min_count=1, ends=False)"
SETS = {"aggregator": "slots(k=2, heads=2, head_width=8)", "similarity": "smooth_chamfer"}
MODELS = {
    "vectors": ({}, EmbeddingGallery),
    "sets": (SETS, EmbeddingGallery),
    "pairs": ({"aggregator": "score_attention(heads=2)"}, PairGallery),
    "hgr": ({"model": hgr(dropout=0.0), "text": WORDS}, PairGallery),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    run = make_corpus(tmp_path_factory.mktemp("tiny"))
    return replace(run, data=replace(run.data, text_augment=""))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return folder, with_pictures(folder, train=8, val=4, test=6)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    return folder, with_pictures(folder, questions=True, train=8, val=4, test=6)


def assert_scores(hits, expected) -> None:
    np.testing.assert_allclose([hit.score for hit in hits], expected, rtol=1e-4, atol=1e-6)


def units(*shape: int, seed: int) -> torch.Tensor:
    return torch.nn.functional.normalize(
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1
    )


@pytest.mark.parametrize("k", [7, 50])
def test_top_k_breaks_ties_by_gallery_order(k):
    score_G = torch.randint(0, 4, (40,), generator=torch.Generator().manual_seed(k)).float()
    expected = sorted(range(40), key=lambda place: (-score_G[place].item(), place))[:k]
    found = top_k(score_G, k)
    assert found.index_K.tolist() == expected
    assert found.score_K.tolist() == score_G[expected].tolist()
    with pytest.raises(InputError, match="not finite"):
        top_k(torch.tensor([0.0, torch.nan]), 1)


def test_chunked_exact_search_matches_float64(monkeypatch):
    monkeypatch.setattr(searches, "PART", 70)  # chunks of seven vectors
    embedding_GD, query_QD = units(61, 10, seed=0), units(3, 10, seed=1)
    found = Exact(embedding_GD, lambda part, queries: part @ queries.T).top(query_QD, 10)
    sim_QG = query_QD.double().numpy() @ embedding_GD.double().numpy().T
    for (index_K, score_K), sim_G in zip(found, sim_QG, strict=True):
        assert index_K.tolist() == np.argsort(-sim_G)[:10].tolist()
        np.testing.assert_allclose(score_K, np.sort(sim_G)[::-1][:10], rtol=1e-5)


@pytest.mark.parametrize("small", [5000, 100])
def test_faiss_recall_at_10_is_high(small):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    embedding_GD = torch.nn.functional.normalize(
        units(40, 32, seed=5).repeat(75, 1) + 0.8 * units(3000, 32, seed=6), dim=-1
    )
    queries_QD = torch.nn.functional.normalize(embedding_GD[::10] + 0.5 * units(300, 32, seed=7), dim=-1)
    index = Faiss(embedding_GD, queries_QD[::2], small=small)
    assert (index.clusters > 0) == (small < 3000)
    assert f"recall@10 {index.recall:.3f}" in index.about
    sim_QG, shared = queries_QD[1::2] @ embedding_GD.T, 0
    for (index_K, score_K), sim_G in zip(index.top(queries_QD[1::2], 10), sim_QG, strict=True):
        torch.testing.assert_close(score_K, sim_G[index_K], atol=1e-5, rtol=0)
        shared += int(torch.isin(index_K, sim_G.topk(10).indices).sum())
    assert shared / 1500 >= 0.995
    assert sorted(index.top(queries_QD[:1], 4000)[0].index_K.tolist()) == list(range(3000))


@pytest.mark.parametrize("name", ["vectors", "sets", "hgr"])
def test_search_results_match_split_scores(tiny, name):
    change, kind = MODELS[name]
    trained = untrained(replace(tiny, **change))
    pairs = trained.adapter.data("test")
    sim_VT = trained.adapter.scorer(trained.model, "test")(slice(0, 20), slice(0, 40)).numpy()
    finder = trained.open_search()
    assert isinstance(finder.items_gallery, kind)
    for column in (0, 7):
        hits = finder.find(Query(text=pairs.texts[column]), 5)
        order = np.argsort(-sim_VT[:, column], kind="stable")[:5]
        assert_scores(hits, sim_VT[order, column])
        if (np.diff(np.sort(sim_VT[:, column])) > 1e-5).all():
            assert [hit.id for hit in hits] == pairs.item_ids[order].tolist()
    queries = [Query(text=text) for text in pairs.texts[:9]]
    for together, query in zip(finder.find_each(queries, 5), queries, strict=True):
        alone = [hit.score for hit in finder.find(query, 5)]
        np.testing.assert_allclose([hit.score for hit in together], alone, rtol=1e-4, atol=1e-6)
    row = 3
    hits = finder.find(Query(id=pairs.item_ids[row]), 6)
    assert_scores(hits, np.sort(sim_VT[row])[::-1][:6])
    for hit in hits:
        at = np.flatnonzero(pairs.item_ids[pairs.owner_T] == hit.id)
        place = next(place for place in at if pairs.texts[place] == hit.caption)
        assert sim_VT[row, place] == pytest.approx(hit.score, rel=1e-4, abs=1e-6)


def test_image_file_query_equals_stored_item_query(pictures):
    folder, run = pictures
    finder = untrained(run).open_search()
    id = finder.items[2].id
    assert finder.find(Query(file=folder / "images" / f"{id}.png"), 4) == finder.find(Query(id=id), 4)
    elsewhere = folder / "other.png"
    noise(seed=99).save(elsewhere)
    assert finder.find(Query(file=elsewhere), 4) != finder.find(Query(id=id), 4)
    hits = finder.find(Query(text="a dog and a cat"), 3)
    assert [hit.file for hit in hits] == [str(folder / "images" / f"{hit.id}.png") for hit in hits]


def test_video_file_query_equals_stored_item_query(tmp_path):
    finder = untrained(with_clips(tmp_path)).open_search()
    try:
        id = finder.items[1].id
        clip = tmp_path / "clips" / f"{id}.png"
        assert finder.find(Query(file=clip, video=True), 4) == finder.find(Query(id=id), 4)
        with pytest.raises(InputError, match="features of videos; give one with --video"):
            finder.find(Query(file=clip), 4)
    finally:
        finder.close()


def test_question_about_video_file_equals_question_about_stored_item(tmp_path):
    finder = untrained(with_clips(tmp_path, questions=True)).open_search()
    try:
        id, question = finder.items[1].id, "how many things?"
        clip = tmp_path / "clips" / f"{id}.png"
        answers = finder.find(Query(text=question, id=id), 3)
        assert finder.find(Query(text=question, file=clip, video=True), 3) == answers
        with pytest.raises(InputError, match="questions about videos: give --video FILE or --id ID"):
            finder.find(Query(text=question), 3)
    finally:
        finder.close()


def test_pixel_model_accepts_image_file_query(pictures, tmp_path):
    folder, run = pictures
    spec = f"patches(name={save_vit(tmp_path / 'vit')!r}, width=16)"
    data = replace(run.data, features="", visual_augment="")
    finder = untrained(
        replace(run, visual=spec, text="bigru(width=16, embedding=8, min_count=1)", data=data)
    ).open_search()
    id = finder.items[0].id
    assert finder.find(Query(file=folder / "images" / f"{id}.png"), 3) == finder.find(Query(id=id), 3)
    with pytest.raises(InputError, match="reads the pixels of images"):
        finder.find(Query(file=folder / "images" / f"{id}.png", video=True), 3)


def test_answers_are_ranked_by_split_probabilities(asked):
    folder, run = asked
    trained = untrained(run)
    answerer, questions = trained.open_search(), trained.adapter.corpus.questions("test")
    probability_QA = trained.adapter.scorer(trained.model, "test")(slice(0, 3), slice(None)).numpy()
    for question, probability_A in zip(questions[:3], probability_QA, strict=True):
        found = answerer.find(Query(id=question.image_id, text=question.question), 5)
        order = np.argsort(-probability_A, kind="stable")[:5]
        assert [answer for answer, _ in found] == [trained.adapter.vocabulary.answers[n] for n in order]
        np.testing.assert_allclose([share for _, share in found], probability_A[order], rtol=1e-4)
        file = folder / "images" / f"{question.image_id}.png"
        assert answerer.find(Query(file=file, text=question.question), 5) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [("sets", "for single vectors"), ("pairs", "makes none of images and captions apart")],
)
def test_faiss_is_refused_without_single_vectors(tiny, change, message):
    with pytest.raises(InputError, match=f"{message}.*; choose --index exact"):
        untrained(replace(tiny, **MODELS[change][0])).search("a dog", index="faiss")


def test_search_command_prints_results_and_notes(pictures, tiny, new_home):
    run_id = track_untrained(pictures[1])
    _, shown, _ = called("search", run_id, "a dog and a zebra", "--k", 50)
    head, *lines, few, searched, unknown, little = shown.splitlines()
    assert head.split() == ["rank", "score", "id", "file", "caption"]
    assert [line.split()[0] for line in lines] == [str(n + 1) for n in range(6)]
    assert all(".png" in line for line in lines)
    assert few == "there are 6 in all, fewer than the 50 requested"
    shown = search(run_id=track_untrained(tiny), id="3", k=2)
    assert "no image or video files: scores and captions alone" in shown
    assert shown.splitlines()[4:] == ["searched: 40 captions of the split test"]
    assert searched == "searched: 6 images of the split test"
    assert unknown == "note: the model has never seen 'zebra', and reads it as an unknown word"
    assert little == "note: of 6 images any order looks plausible; results mean little"
    picture = pictures[0] / "images" / "3.png"
    _, shown, _ = called("search", run_id, "--image", picture, "--find", "images", "--split", "all", "--k", 2)
    assert shown.splitlines()[1].split()[:3] == ["1", "1.0000", "3"]
    assert "searched: 18 images of all splits" in shown
    with pytest.raises(InputError, match="was trained on images; give --find images or captions"):
        search(run_id=run_id, query="a dog", find="videos")


def test_search_warns_about_model_at_chance_level(tiny, new_home):
    run_id = track_untrained(tiny)
    Tracker.attach(tracking_uri(new_home), run_id, running=False).log(
        {"test/score": 31.0, "test/chance": 32.5, "test/chance_normalised": -0.3}, step=1
    )
    said = "note: the model's score, rsum 31, is not above chance, 32.5; results mean little"
    assert said in search(run_id=run_id, query="a dog").splitlines()


@pytest.mark.parametrize(
    "change",
    [SETS, {"aggregator": "probabilistic", "similarity": "csd"}, {"aggregator": "late", "similarity": "wti"}],
)
def test_search_within_one_modality_matches_scores(tiny, change):
    trained = untrained(replace(tiny, **change))
    score, finder = trained.adapter.scorer(trained.model, "test"), trained.open_search()
    hits = finder.find(Query(id=finder.items[4].id), 6, side="visual")
    sim_V = score.of_images(slice(4, 5), slice(0, 20))[0].numpy()
    assert_scores(hits, np.sort(np.delete(sim_V, 4))[::-1][:6])
    assert finder.items[4].id not in [hit.id for hit in hits]
    sim_T = score.of_captions(slice(7, 8), slice(0, 40))[0].numpy()
    assert_scores(finder.find(Query(text=finder.pairs.texts[7]), 6, side="text"), np.sort(sim_T)[::-1][:6])


def test_split_all_searches_every_split(tiny):
    trained = untrained(tiny)
    hits = trained.search("a dog", 84, split="all")
    assert {hit.id for hit in hits} == {str(number) for number in range(84)}
    one_by_one = [trained.search("a dog", 84, split=split) for split in ("train", "val", "test")]
    single = {hit.id: hit.score for part in one_by_one for hit in part}
    assert {hit.id: pytest.approx(hit.score, abs=1e-6) for hit in hits} == single


def test_embeddings_are_cached_until_data_changes(new_home, tmp_path, monkeypatch):
    run = make_corpus(tmp_path / "first")
    run_id = track_untrained(run)
    encoded = []
    for name in ("items", "sentences"):
        encode = getattr(Pairs, name)
        monkeypatch.setattr(
            Pairs,
            name,
            lambda self, size, name=name, encode=encode: encoded.append(name) or encode(self, size),
        )

    def found() -> list:
        trained = load(run_id, other_data=True)
        return [*trained.search("a dog", 5), *trained.open_search().find(Query(id="3"), 5)]

    first = found()
    assert encoded == ["items", "sentences"]
    assert found() == first
    assert encoded == ["items", "sentences"]
    assert first == [
        *untrained(run).search("a dog", 5),
        *untrained(run).open_search().find(Query(id="3"), 5),
    ]
    folder = new_home / "runs" / run_id / "embeddings"
    assert len(files := sorted(folder.iterdir())) == 2
    encoded.clear()
    shutil.rmtree(tmp_path / "first" / "features")
    make_corpus(tmp_path / "first", seed=5)  # changed features and captions
    assert found() != first
    assert encoded == ["items", "sentences"]
    assert len(sorted(folder.iterdir())) == 2
    assert not {*files} & {*folder.iterdir()}
    encoded.clear()
    shutil.rmtree(folder)
    folder.write_text("in the way")
    found()
    assert {*encoded} == {"items", "sentences"}


def test_invalid_search_input_is_refused(pictures, asked, new_home, tmp_path):
    run_id, answers_id = track_untrained(pictures[1]), track_untrained(asked[1])
    text, picture = tmp_path / "text.png", tmp_path / "a.png"
    text.write_text("no picture")
    Image.new("RGB", (9, 9)).save(picture)
    for options, message in [
        ({"run_id": "0000", "query": "a dog"}, "no run '0000'"),
        ({"run_id": run_id}, "nothing to look for"),
        ({"run_id": run_id, "query": "  ?! "}, "has no word"),
        ({"run_id": run_id, "query": "a dog", "k": 0}, "at least 1"),
        ({"run_id": run_id, "query": "a dog", "split": "tset"}, "no items in the split 'tset'"),
        ({"run_id": run_id, "image": tmp_path / "gone.png"}, "no such file"),
        ({"run_id": run_id, "image": text}, "does not decode as an image"),
        ({"run_id": run_id, "video": picture}, "features of images; give one with --image"),
        ({"run_id": run_id, "id": "dog"}, "no item has the id 'dog'"),
        ({"run_id": run_id, "image": picture, "id": "3"}, "not several"),
        ({"run_id": run_id, "image": picture, "query": "a dog"}, "not both"),
        ({"run_id": answers_id, "query": "how many?"}, "give --image FILE or --id ID"),
        ({"run_id": answers_id, "id": "3"}, "has no word"),
    ]:
        with pytest.raises(InputError, match=message):
            search(**options)
    shown = search(run_id=answers_id, query="how many things?", image=picture).splitlines()
    assert len(shown) == 6
    code, _, error = called("search", run_id, "--id", "dog")
    assert (code, error[:7]) == (2, "error: ")
