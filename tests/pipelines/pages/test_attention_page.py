from __future__ import annotations

import logging
import re
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from pictures import noise
from PIL import Image
from workers import run_workers

from aggregators.base import Aggregator, Context, Pooled
from infra.dist import rank
from infra.registry import TASKS
from pipelines.pages.attended import Attended, Pair, attended, caption_pairs, question_pairs
from pipelines.pages.attention import attention_to_captions
from pipelines.pages.attention_page import Split, attention_page, bars, frame_of, words
from pipelines.pages.heat import cells, overlay, part_seen
from pipelines.pages.nearest_captions import nearest_captions
from tasks.models.split_embeddings import SplitEmbeddings

SLOTS = "slots(k=3, iterations=1, heads=2, head_width=4)"


class Odd(Aggregator):
    """A mean whose weights are not those of its elements."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND, mask_BN):
        mean_BD = x_BND.masked_fill(~mask_BN[..., None], 0.0).sum(1) / mask_BN.sum(1, keepdim=True)
        return Pooled(mean_BD, weights=torch.full((len(x_BND), x_BND.shape[1] + 1), torch.nan))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A run of retrieval with pictures, and one on questions."""
    folder = tmp_path_factory.mktemp("attention")
    runs = make_corpus(folder / "pairs", images=folder / "images"), make_questions(folder / "asked")
    for number in range(84):
        noise(40, 60, seed=number).save(folder / "images" / f"{number}.png")
    return runs


def built(run, **changes):
    torch.manual_seed(0)
    adapter = TASKS.build(run.task, replace(run, **changes))
    return adapter, adapter.model(pretrained=False)


def test_the_weights_are_those_of_each_pair_alone_and_the_model_is_as_before(tiny) -> None:
    adapter, model = built(
        tiny[0], aggregator=SLOTS, text_aggregator="attention", similarity="smooth_chamfer"
    )
    model.train()
    model.visual.encoder.norm.eval()
    pairs = adapter.data("test")
    found = attended(model, caption_pairs(pairs, count=5))
    assert model.training
    assert not model.visual.encoder.norm.training
    assert not model.visual.aggregator._forward_hooks
    model.eval()
    assert len({it.pair.item for it in found}) == 5
    for it in found:
        assert pairs.owner_G[it.pair.text] == it.pair.item
        visual, mask = pairs.visual.batch(np.array([it.pair.item]), sample_B=np.array([0]), draw=None)
        text = pairs.captions.batch(np.array([it.pair.text]))
        with torch.no_grad():
            weight_KN = model.visual.aggregator(*model.visual.encoder(visual, mask)).weights[0]
            weight_L = model.text.aggregator(*model.text.encoder(text["text"], text["text_mask"])).weights[0]
        np.testing.assert_allclose(it.weights["visual"], weight_KN, rtol=1e-5)
        np.testing.assert_allclose(it.weights["text"], weight_L[None], rtol=1e-5)
    again = attended(model, caption_pairs(pairs, count=5))
    assert [it.pair.text for it in again] == [it.pair.text for it in found]


def test_weights_of_channels_are_averaged_and_context_takes_part(tiny) -> None:
    adapter, model = built(
        tiny[0],
        aggregator="score_attention(k=2, heads=2)",
        text_aggregator="softpool",
        similarity="smooth_chamfer",
    )
    model.eval()
    for it in attended(model, caption_pairs(adapter.data("test"), count=3)):
        batch = it.pair.batch
        with torch.no_grad():
            visual, text = model.encode_visual(batch), model.encode_text(batch)
            weight_KN = model.visual.aggregator(*visual, context=Context(*text)).weights[0]
            weight_L = model.text.aggregator(*text).weights[0].mean(dim=1)
        assert weight_KN.shape[0] == 2
        np.testing.assert_allclose(it.weights["visual"], weight_KN, rtol=1e-5)
        np.testing.assert_allclose(it.weights["text"], weight_L[None], rtol=1e-5)


def weights_of(run) -> dict[str, np.ndarray]:
    adapter, model = built(run)
    found = attended(model, caption_pairs(adapter.data("test"), count=3))
    assert not found or rank() == 0
    return {
        f"{run.aggregator} {number} {side}": weight_KN
        for number, it in enumerate(found)
        for side, weight_KN in it.weights.items()
    }


def worker(folder: str, runs) -> None:
    found = {name: weight_KN for run in runs for name, weight_KN in weights_of(run).items()}
    if rank() == 0:
        np.savez(f"{folder}/weights.npz", **found)


def test_two_workers_find_what_one_finds(tiny, tmp_path) -> None:
    runs = [replace(tiny[0], aggregator=spec) for spec in ("score_attention(k=2, heads=2)", SLOTS)]
    run_workers(worker, str(tmp_path), runs)
    together = np.load(tmp_path / "weights.npz")
    assert len(together) == 12
    for run in runs:
        for name, weight_KN in weights_of(run).items():
            np.testing.assert_allclose(together[name], weight_KN, rtol=1e-5, atol=1e-7)


def test_questions_are_attended_with_their_images(tiny) -> None:
    adapter, model = built(tiny[1], aggregator="attention", text_aggregator="gpo")
    model.eval()
    data = adapter.data("test")
    for it in attended(model, question_pairs(data, count=4)):
        assert list(it.weights) == ["visual"]
        visual, mask = data.visual.batch(data.image_Q[[it.pair.item]], sample_B=np.array([0]), draw=None)
        with torch.no_grad():
            weight_N = model.visual.aggregator(*model.visual.encoder(visual, mask)).weights
        np.testing.assert_allclose(it.weights["visual"], weight_N, rtol=1e-5)


@pytest.mark.parametrize("aggregator", ["gpo", "mean", "logsumexp"])
def test_without_weights_of_elements_that_differ_there_is_no_page(tiny, aggregator) -> None:
    adapter, model = built(tiny[0], aggregator=aggregator)
    assert attention_to_captions(adapter, model, "test", adapter.scorer(model, "test")) == {}


def test_an_aggregator_with_odd_weights_is_named_and_left_out(tiny, caplog) -> None:
    odd = f"{__name__}:Odd"
    adapter, model = built(tiny[0], aggregator="attention", text_aggregator=odd)
    assert type(model.text.aggregator).__name__ == "Odd"
    with caplog.at_level(logging.WARNING):
        found = attended(model, caption_pairs(adapter.data("test"), count=3))
    assert [list(it.weights) for it in found] == [["visual"]] * 3
    assert len(caplog.records) == 1
    assert "text.aggregator (Odd) cannot be shown" in caplog.text


def test_an_evaluation_makes_the_page_when_it_is_asked_to(tiny) -> None:
    adapter, model = built(tiny[0], aggregator=SLOTS, similarity="smooth_chamfer")
    made = adapter.evaluate(model, "test", "whole").pictures[-1]()
    html = made["test_attention.html"].decode()
    assert html.count("<article>") == 12
    assert html.count('src="data:image/jpeg') == 12 * 3
    assert html.count("cosine ") == 12 * 3
    assert "&lt;start&gt;" in html
    adapter, model = built(tiny[1], aggregator="attention")
    html = adapter.evaluate(model, "test", "vqa").pictures[-1]()["test_attention.html"].decode()
    assert html.count("<article>") == 12
    assert html.count('<div class="bars">') == 12, "there are no pictures, so the weights alone are drawn"


def test_the_nearest_caption_of_every_vector(monkeypatch) -> None:
    monkeypatch.setattr("pipelines.pages.nearest_captions._CAPTIONS", 4)
    generator = torch.Generator().manual_seed(0)
    visual = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    for shape in ((11, 6), (11, 2, 6)):
        text = torch.randn(shape, generator=generator, dtype=torch.float64)
        for item in range(3):
            found = nearest_captions(SplitEmbeddings(visual=visual, text=text, similarity=None), item)
            for embedding_D, near in zip(visual[item], found, strict=True):
                cosines = [
                    max(float(t @ embedding_D / t.norm() / embedding_D.norm()) for t in of_one.reshape(-1, 6))
                    for of_one in text
                ]
                assert near.caption == int(np.argmax(cosines))
                assert near.cosine == pytest.approx(max(cosines), abs=1e-6)


def test_cells_of_a_square_with_or_without_a_class_token() -> None:
    assert cells(49) == (7, 0)
    assert cells(197) == (14, 1)
    assert cells(5) == (2, 1)
    assert [cells(count) for count in (0, 1, 2, 3, 6, 30, 51)] == [None] * 7


def test_the_warmest_place_lies_over_the_heaviest_cell() -> None:
    grey = Image.new("RGB", (93, 63), (128, 128, 128))
    weight_RC = np.zeros((3, 3))
    weight_RC[0, 2] = 0.5
    heat_HW = np.asarray(overlay(grey, weight_RC)).astype(int)[..., 0]
    assert heat_HW[10, 77] == heat_HW.max()
    for row, column in [(r, c) for r in range(3) for c in range(3) if (r, c) != (0, 2)]:
        assert heat_HW[21 * row + 10, 31 * column + 15] == heat_HW.min()
    assert heat_HW[10, 62] in range(heat_HW.min() + 1, heat_HW.max()), "colours between two cells are mixed"
    assert overlay(grey, np.full((3, 3), 0.1)) is grey
    pale_HW = np.asarray(overlay(grey, 1 + 0.01 * weight_RC)).astype(int)[..., 0]
    assert 0 < np.abs(pale_HW - 128).max() < 3, "what differs little is hardly coloured"


def test_the_middle_is_shown_where_the_backbone_saw_no_more() -> None:
    image = Image.fromarray(np.arange(400 * 200 * 3, dtype=np.uint32).astype(np.uint8).reshape(200, 400, 3))
    clip = {
        "do_center_crop": True,
        "size": {"shortest_edge": 224},
        "crop_size": {"height": 224, "width": 224},
    }
    small = clip | {"size": {"shortest_edge": 256}}
    convnext = {"crop_pct": 0.875, "size": {"shortest_edge": 224}}
    squeezed = {"crop_pct": 0.875, "size": {"shortest_edge": 384}}
    square = clip | {"size": {"height": 448, "width": 448}}
    for preprocessing, box in (
        (clip, (100, 0, 300, 200)),
        (small, (112, 12, 288, 188)),
        (convnext, (112, 12, 288, 188)),
        (squeezed, (0, 0, 400, 200)),
        (square, (100, 50, 300, 150)),
        ({"size": {"height": 224, "width": 224}}, (0, 0, 400, 200)),
    ):
        part = part_seen(image, {"preprocessing": preprocessing})
        assert np.array_equal(np.asarray(part), np.asarray(image.crop(box))), preprocessing
    assert part_seen(image, {"size": 512, "preprocessing": clip}) is image
    assert part_seen(image, {}) is image


def test_words_and_bars_have_the_weight_of_their_element() -> None:
    html = words(np.array([0.1, 0.4, -0.2]), ["a", "<b>", "&"])
    assert re.findall(r'--w:([\d.]+)" title="([^"]*)"', html) == [
        ("0.25", "a: 10.0%"),
        ("1.00", "&lt;b&gt;: 40.0%"),
        ("0.00", "&amp;: -20.0%"),
    ]
    assert "<b>" not in html
    heights = re.findall(r"height:([\d.]+)%", bars(np.array([0.1, 0.4, -0.2])))
    assert heights == ["25.0", "100.0", "0.0"]
    assert re.findall(r'<i( class="pale")?', bars(np.array([0.1, 0.4]), [1])) == [' class="pale"', ""]


def test_an_element_of_a_video_is_shown_by_the_frame_at_its_time() -> None:
    assert [frame_of(n, 4, 4) for n in range(4)] == [0, 1, 2, 3]
    assert [frame_of(n, 6, 3) for n in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [frame_of(n, 2, 5) for n in range(2)] == [1, 3]
    assert frame_of(0, 1, 1) == 0


class Shown:
    """Pictures that tell which they are by their grey."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, []

    def images(self, number: int, *, at_most: int = 1) -> list[Image.Image]:
        self.asked.append((number, at_most))
        return [Image.new("RGB", (40, 40), (20 * n,) * 3) for n in range(min(self.count, at_most))]


def split(thumbnails: Shown, **changes) -> Split:
    return Split(
        **{
            "name": "test",
            "modality": "image",
            "ids": ["one", "<two>"],
            "texts": ["a <i>dog</i>", "b"],
            "owner_G": np.array([1, 0]),
            "tokenizer": SimpleNamespace(subwords=lambda numbers: [f"w{n}" for n in numbers]),
            "thumbnails": thumbnails,
            "extractor": {},
        }
        | changes
    )


def looked(**weights: np.ndarray) -> Attended:
    batch = {"text": torch.tensor([[4, 5, 0]]), "text_mask": torch.tensor([[True, True, False]])}
    return Attended(pair=Pair(item=1, text=0, batch=batch), weights=weights)


def test_what_others_wrote_is_escaped_and_pads_are_no_words() -> None:
    html = attention_page([looked(text=np.array([[0.25, 0.75]]))], split(Shown(1)))
    assert "a &lt;i&gt;dog&lt;/i&gt;" in html
    assert "image &lt;two&gt;" in html
    assert re.findall(r'title="([^"]*)"', html) == ["w4: 25.0%", "w5: 75.0%"]
    assert html.count("<img") == 1, "the image stands there as it is"
    shorter = attention_page([looked(text=np.array([[0.2, 0.3, 0.5]]))], split(Shown(1)))
    assert "element 3: 50.0%" in shorter, "an encoder that changed the number of words gets bars"


def test_cells_go_over_the_image_and_regions_beside_it() -> None:
    token = np.array([[0.6, 0.1, 0.1, 0.1, 0.1]])
    html = attention_page([looked(visual=token)], split(Shown(1)))
    assert "class token 60.0%" in html
    assert '<div class="bars">' not in html
    nine = np.arange(9.0)[None] / 36
    html = attention_page([looked(visual=nine)], split(Shown(1), extractor=None))
    assert html.count("<img") == 1
    assert len(re.findall(r"element \d: ", html)) == 9
    assert "<img" not in attention_page([looked(visual=nine)], split(Shown(0)))


def test_of_a_video_the_heaviest_frames_are_shown_in_time() -> None:
    weight_KN = np.array([[0.02, 0.3, 0.05, 0.1, 0.2, 0.33]])
    thumbnails = Shown(6)
    html = attention_page([looked(visual=weight_KN)], split(thumbnails, modality="video"))
    assert thumbnails.asked == [(1, 6)]
    assert re.findall(r"<figcaption><small>([\d.]+)%</small>", html) == ["30.0", "10.0", "20.0", "33.0"]
    assert re.findall(r'<i( class="pale")? style', html) == [' class="pale"', "", ' class="pale"', "", "", ""]


def test_a_nearest_caption_of_the_image_itself_is_marked() -> None:
    embeddings = SplitEmbeddings(
        visual=torch.eye(4)[None, :2].repeat(2, 1, 1), text=torch.eye(4)[:2].clone(), similarity=None
    )
    weight_KN = np.stack([np.arange(4.0), np.arange(4.0)[::-1]])
    html = unescape(attention_page([looked(visual=weight_KN)], split(Shown(1), embeddings=embeddings)))
    own, other = re.findall(r"<br><span(.*?)</figcaption>", html, flags=re.DOTALL)
    assert own.startswith(' class="good">✓ a <i>dog</i></span>')
    assert "one of this image's" in own
    assert other.startswith(">b</span>")
    assert "cosine 1.00" in other
