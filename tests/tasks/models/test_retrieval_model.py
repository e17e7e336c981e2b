"""Retrieval models: learned loss parameters, autocast, custom models, and losses of the global batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import hgr, make_corpus
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from toy import WORDS, Toy, toy_run
from workers import run_workers

from polypool.encoders.text.bigru import BiGRU
from polypool.infra.compute.dist import rank, world
from polypool.infra.registry import TASKS
from polypool.infra.spec import trust_specs
from polypool.tasks.inputs.texts import caption_inputs
from polypool.tasks.models.branch import Branch
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.models.parts import Parts, retrieval_model
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.run import Run
from polypool.tasks.similarities.similarity import Cosine
from polypool.tasks.similarities.vectors import Embeddings


class Offset(Regulariser):
    name = "offset"

    def __init__(self, *, weight: float = 2.0) -> None:
        super().__init__(weight=weight)
        self.offset = nn.Parameter(torch.tensor(0.25))

    def forward(self, visual, text):
        return (visual.vectors.mean() - text.vectors.mean() - self.offset).square()


@pytest.mark.parametrize(
    ("objective", "names"),
    [
        ("infonce(temperature=0.07, learned=True)", {"log_scale"}),
        ("siglip", {"log_scale", "bias"}),
        ("pcmepp", {"scale", "bias"}),
    ],
)
def test_learned_objective_parameters_are_in_state_dict(objective, names):
    toy = Toy(toy_run(objective=objective))
    model = toy.model()
    model(toy.data("train").batch(np.arange(8), seed=0, epoch=0), epoch=0.0)["loss"].backward()
    learned = {f"objective.{name}" for name in names}
    assert {name for name in model.state_dict() if name.startswith("objective.")} == learned
    assert all(dict(model.named_parameters())[name].grad.abs() > 0 for name in learned)


@pytest.mark.parametrize("objective", ["infonce(temperature=0.07, learned=True)", "adopt"])
def test_scores_loss_and_gradients_are_float32_under_autocast(objective):
    run = toy_run(objective=objective)
    torch.manual_seed(0)
    model, batch = Toy(run).model(), Toy(run).data("train").batch(np.arange(8), seed=0, epoch=0)
    seen: list[Tensor] = []
    model.objective.register_forward_hook(lambda _, inputs, terms: seen.extend([inputs[0], terms["loss"]]))
    model.objective.register_forward_pre_hook(lambda *_: seen.append(torch.ones(2, 2) @ torch.ones(2, 2)))
    with torch.autocast("cpu", torch.bfloat16):
        model(batch, epoch=0.0)["loss"].backward()
    assert [x.dtype for x in seen] == [torch.float32] * 3  # autocast is off in the objective
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.objective.parameters())


def test_regularisers_add_weighted_loss_and_get_gradients():
    toy = Toy(toy_run())
    plain = toy.model()
    model = DualEncoder(plain.visual, plain.text, Cosine(), plain.objective, [Offset()])
    batch = toy.data("train").batch(np.arange(8), seed=0, epoch=0)
    model.eval()
    terms, without = model(batch, epoch=0.0), plain.eval()(batch, epoch=0.0)
    torch.testing.assert_close(terms["loss"], without["loss"] + 2.0 * terms["offset"])
    terms["loss"].backward()
    assert model.regularisers[0].offset.grad.abs() > 0
    assert "regularisers.0.offset" in model.state_dict()
    assert "offset" not in without


class Weighed(DualEncoder):
    """A third-party model, which reads words of captions and learns a factor of its scores."""

    def __init__(self, parts: Parts, *, gain: float = 1.0) -> None:
        visual, text = parts.visual(), parts.text()
        aggregators = parts.visual_aggregator(visual.width), parts.text_aggregator(text.width)
        branches = Branch(visual, aggregators[0]), Branch(text, aggregators[1])
        super().__init__(*branches, parts.similarity(*aggregators), parts.objective(), parts.regularisers())
        self.gain = nn.Parameter(torch.tensor(gain))

    def score(self, visual: Embeddings, text: Embeddings) -> Tensor:
        return self.gain * super().score(visual, text)


def test_custom_model_is_loaded_by_import_path():
    toy = Toy(toy_run(objective="siglip"))
    run = replace(toy.run, model=f"{__name__}:Weighed(gain=3.0)")
    trust_specs(run.model)
    torch.manual_seed(0)
    plain = toy.model().eval()
    parts = Parts(run, visual=lambda: plain.visual.encoder, text=lambda: plain.text.encoder)
    torch.manual_seed(0)
    model = retrieval_model(run, parts)
    assert isinstance(model, Weighed)
    model.load_state_dict(plain.state_dict(), strict=False)
    batch = toy.data("train").batch(np.arange(8), seed=0, epoch=0)
    ours, theirs = (of.eval().score_batch(batch).sim_VT for of in (model, plain))
    torch.testing.assert_close(ours, 3 * theirs)
    model(batch, epoch=0.0)["loss"].backward()
    assert model.gain.grad.abs() > 0
    for most, sizes in ((0, [5, 3]), (1, [3, 3])):
        limited = replace(run, data=replace(run.data, max_words=most))
        captions = caption_inputs(limited, ["w1 w2 w3", "w4"], BiGRU.tokenizer({"words": WORDS}))
        assert captions.batch(np.arange(2))["text_mask"].sum(dim=1).tolist() == sizes


HGR_TEXT = "bigru(width=16, embedding=8, min_count=1, ends=False)"
MODELS = {
    "dual encoder": {},
    "pairs": {"aggregator": "score_attention(heads=2)"},
    "hgr": {"model": hgr(verbs=2, nouns=2, dropout=0.0), "text": HGR_TEXT},
}
# captions: both of items 0 and 3, with item 3 on two workers; images: item 4 on two workers, each with its
# two captions
SAMPLES = {"caption": [0, 1, 6, 20, 7, 30, 41, 50], "image": [4, 9, 2, 4]}
CASES = [(model, sample) for model in MODELS for sample in SAMPLES]
TEMPERATURE = 0.05  # default of infonce


def run_of(run: Run, model: str, sample: str) -> Run:
    data = replace(run.data, sample=sample, visual_augment="", text_augment="")
    return replace(run, data=data, objective="infonce", **MODELS[model])


def of_worker(run: Run) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return a batch's loss terms, as the training loop computes them, and the scores of the global batch."""
    torch.manual_seed(0)
    adapter = TASKS.build(run.task, run)
    model = adapter.model()
    index = np.array_split(np.array(SAMPLES[run.data.sample]), world())[rank()]
    batch = adapter.data("train").batch(index, seed=0, epoch=0)
    parallel = DistributedDataParallel(model, broadcast_buffers=False) if world() > 1 else model
    terms = adapter.loss(parallel, batch, epoch=0.0)
    return {name: x.detach() for name, x in terms.items()}, model.score_batch(batch).sim_VT.detach()


def explicit(run: Run, sim_VT: torch.Tensor, *, diagonal: bool = False) -> dict[str, float]:
    """Return InfoNCE, pair by pair, and the mean scores; pairs are read from the corpus."""
    items = TASKS.build(run.task, run).corpus.items("train")
    captions = [(item.id, text) for item in items for text in item.captions[: run.data.captions]]
    if run.data.sample == "caption":
        rows = [captions[number][0] for number in SAMPLES["caption"]]
        columns = list(enumerate(rows))
    else:
        rows = [items[number].id for number in SAMPLES["image"]]
        columns = [(row, id) for row, id in enumerate(rows) for _ in range(run.data.captions)]
    sim = sim_VT.double().numpy()
    logit, costs, pairs, negatives = sim / TEMPERATURE, [], [], []
    for text, (row, owner) in enumerate(columns):
        of_text = [other == row if diagonal else id == owner for other, id in enumerate(rows)]
        of_row = [other == row if diagonal else id == owner for other, id in columns]
        pair = logit[row, text]
        for line, same in ((logit[row], of_row), (logit[:, text], of_text)):
            costs.append(np.log(np.exp([pair, *line[~np.array(same)]]).sum()) - pair)
        pairs.append(sim[row, text])
        negatives.extend(sim[~np.array(of_text), text])
    return {
        "loss": np.mean(costs),
        "positive_similarity": np.mean(pairs),
        "negative_similarity": np.mean(negatives),
    }


def worker(folder: str, run: Run) -> None:
    found = {f"{model}, {sample}": of_worker(run_of(run, model, sample)) for model, sample in CASES}
    torch.save(found, f"{folder}/{rank()}.pt")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return make_corpus(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def two_workers(run, tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("workers")
    run_workers(worker, str(folder), run)
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


@pytest.mark.parametrize(("model", "sample"), CASES)
def test_training_loss_has_no_negatives_of_same_item(run, two_workers, model, sample):
    changed = run_of(run, model, sample)
    for terms, sim_VT in (of_worker(changed), *(found[f"{model}, {sample}"] for found in two_workers)):
        expected, wrong = explicit(changed, sim_VT), explicit(changed, sim_VT, diagonal=True)
        assert abs(expected["loss"] - wrong["loss"]) > 0.01  # the batch must distinguish them
        own = {name: terms[name].item() for name in expected}
        assert own == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert {*terms} - {*expected} <= {"score_deviation", "visual_variance", "text_variance"}
