"""Sets of any size as embeddings: encoded in batches, scored and analysed."""

from dataclasses import replace

import pytest
import torch
from corpora import make_corpus
from torch import nn

from polypool.infra.registry import TASKS
from polypool.pipelines.models.trained import TrainedModel
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.scoring.geometry import ablated, alignment, uniformity, variance_of
from polypool.tasks.similarities.late_interaction import MaxSim, WeightedTokenInteraction


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> TrainedModel:
    run = make_corpus(tmp_path_factory.mktemp("late"), train=16, test=40)
    run = replace(run, aggregator="late", text_aggregator="late(factor=2)", task="image_text(chunk=16)")
    torch.manual_seed(0)
    adapter = TASKS.build(run.task, run)
    return TrainedModel(run=run, adapter=adapter, model=adapter.model().eval())


@pytest.fixture(scope="module")
def split(model) -> SplitEmbeddings:
    return model.adapter.scorer(model.model, "test")


def sets(embedding: torch.Tensor) -> list[torch.Tensor]:
    return [x_KD[x_KD.any(dim=1)].double() for x_KD in embedding]


def test_split_scores_match_set_by_set_maxsim(split):
    assert isinstance(split.similarity, MaxSim)
    visual, text = sets(split.visual), sets(split.text)
    assert len({len(x) for x in visual}) > 1
    sims = [[x @ y.T for y in text[:20]] for x in visual[:10]]
    expected_VT = torch.tensor(
        [[float(s.amax(1).mean() + s.amax(0).mean()) / 2 for s in row] for row in sims]
    )
    torch.testing.assert_close(split(slice(0, 10), slice(0, 20)), expected_VT, atol=1e-5, rtol=0)


@torch.no_grad()
def test_wti_uses_weights_of_each_modality(split):
    """Each side uses the weights of its modality, also between texts, between images, and swapped."""
    torch.manual_seed(0)
    similarity = WeightedTokenInteraction(split.visual.shape[-1])
    sided, rows, columns = replace(split, similarity=similarity), slice(0, 4), slice(2, 9)

    def explicit(one: torch.Tensor, of: nn.Module, other: torch.Tensor, of_other: nn.Module) -> torch.Tensor:
        pairs = []
        for x in sets(one):
            for y in sets(other):
                s, w, v = x @ y.T, of(x.float()).softmax(0).double(), of_other(y.float()).softmax(0).double()
                pairs.append(((s.amax(1) @ w).sum() + (s.amax(0) @ v).sum()) / 2)
        return torch.stack(pairs).view(len(one), len(other)).float()

    visual, text = (split.visual, similarity.visual), (split.text, similarity.text)
    for score, (one, of), (other, of_other) in (
        (sided, visual, text),
        (sided.of_images, visual, visual),
        (sided.of_captions, text, text),
    ):
        expected = explicit(one[rows], of, other[columns], of_other)
        torch.testing.assert_close(score(rows, columns), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        similarity.between("text", "visual")(split.text[rows], split.visual[columns]),
        similarity(split.visual[columns], split.text[rows]).T,
    )


def test_geometry_analyses_ignore_padding(model, split):
    owner_T = model.pairs("test", "be tried").owner_T
    visual, text = sets(split.visual), sets(split.text)
    distances = [torch.cdist(visual[v], t).square().mean() for v, t in zip(owner_T, text, strict=True)]
    mean = float(sum(distances)) / len(text)
    assert alignment(split.visual, split.text, owner_T) == pytest.approx(mean, abs=1e-5)
    x_ND = torch.cat(visual)
    potential_P = torch.pdist(x_ND).square().mul(-2).exp()
    expected = float(potential_P.mean().log())
    assert uniformity(split.visual, split.text)["visual"] == pytest.approx(expected, abs=1e-4)
    variance = sum(1 - float(x_KD.mean(dim=0).norm()) for x_KD in visual) / len(visual)
    assert variance_of(split.visual)["variance"] == pytest.approx(variance, abs=1e-5)
    assert not [*ablated(split)]
