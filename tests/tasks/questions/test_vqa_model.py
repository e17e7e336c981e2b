import pytest
import torch
from formulas import cross_modal_of, score_attention_of
from toy import WORDS, toy_run

from polypool.aggregators.random_sets import random_sets
from polypool.encoders.text.bigru import BiGRU, Words
from polypool.encoders.visual.stored import Grid
from polypool.tasks.models.parts import Parts
from polypool.tasks.questions.vqa_model import VQAModel, vqa_model

CROSS = "cross_modal(heads=2, dropout=0.0)"
CLS = "cross_modal(heads=2, dropout=0.0, cls=True)"
V_SIZES, T_SIZES, ANSWERS = [3, 1, 6, 4], [5, 2, 1, 7], 5


def made(*, text=None, visual=None, **changes) -> VQAModel:
    """A small model in float64 for evaluation, with weights that do not depend on the default dtype."""
    torch.manual_seed(0)
    visual = visual or Grid({"dim": 6}, width=8)
    text = text or BiGRU({"words": WORDS}, width=8, embedding=4)
    run = toy_run(**({"objective": "bce", "aggregator": "mean"} | changes))
    model = vqa_model(run, Parts(run, visual=lambda: visual, text=lambda: text), answers=ANSWERS)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def batch_of(*, pad: int = 0) -> dict[str, torch.Tensor]:
    """Questions of several lengths about images of several sizes; masked values are noise."""
    visual, visual_mask = random_sets(V_SIZES, 6, dtype=torch.float64)
    visual = torch.nn.functional.pad(visual, (0, 0, 0, pad), value=9.0)
    visual_mask = torch.nn.functional.pad(visual_mask, (0, pad))
    words = torch.randint(5, 25, (len(T_SIZES), 7), generator=torch.Generator().manual_seed(3))
    text = torch.nn.functional.pad(words, (0, pad), value=4)
    mask = torch.arange(7 + pad) < torch.tensor(T_SIZES)[:, None]
    return {"visual": visual, "visual_mask": visual_mask, "text": text, "text_mask": mask}


def row(batch: dict, b: int) -> dict[str, torch.Tensor]:
    """Return question b without batch mates and padding."""
    sizes = {"visual": V_SIZES[b], "visual_mask": V_SIZES[b], "text": T_SIZES[b], "text_mask": T_SIZES[b]}
    return {key: x[b : b + 1, : sizes[key]] for key, x in batch.items()}


def explicit_pool(model: VQAModel, spec: str, branch, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the vector of one set of any size, by the formula of its aggregator."""
    if spec.startswith("score_attention"):
        return score_attention_of(branch.aggregator, own, other).mean(dim=0)
    if spec == "logsumexp(average=False)":
        return own.exp().sum(dim=0).log()
    return {"mean": own.sum(dim=0) / len(own), "max": own.max(dim=0).values, "cls": own[0]}[spec]


def explicit(model: VQAModel, spec: str, cross: str, fusion: str, one: dict) -> torch.Tensor:
    """Section III of the paper for one question, no padding and no batch."""
    state = dict(model.named_parameters())

    def linear(name, x):
        return state[f"{name}.weight"] @ x + state[f"{name}.bias"]

    v = torch.stack([linear("visual.encoder.fc", x) for x in one["visual"][0]])
    t = model.text.encoder(one["text"], one["text_mask"])[0][0]
    if cross:
        if cross == CLS:
            v, t = (
                torch.cat((token[None], x)) for token, x in zip(state["cross.cls_2D"], (v, t), strict=True)
            )
        v, t = cross_modal_of({k.removeprefix("cross."): x for k, x in state.items()}, 2, 1, v, t)
    embeddings = []
    for name, own, other in (("visual", v, t), ("text", t, v)):
        code = explicit_pool(model, spec, getattr(model, name), own, other)
        inner = linear(f"{name}_feed.inner", code).clamp(min=0)
        embeddings.append(code + linear(f"{name}_feed.outer", inner))
    if fusion == "concat":
        return linear("classifier", torch.cat(embeddings))
    a, b = (
        linear(f"fusion.{name}", x).clamp(min=0)
        for name, x in zip(("visual", "text"), embeddings, strict=True)
    )
    return linear("classifier", a * b)


@pytest.mark.parametrize(
    ("cross", "aggregator", "fusion"),
    [
        (CROSS, "mean", "product"),
        (CROSS, "logsumexp(average=False)", "concat"),
        (CLS, "cls", "concat"),
        (CROSS, "score_attention(k=3, heads=2)", "product"),
        ("", "score_attention(k=1, heads=2)", "concat"),
        ("", "max", "product"),
    ],
)
def test_values_and_gradients_match_paper_formula(cross, aggregator, fusion):
    model, batch = made(cross=cross, aggregator=aggregator, fusion=fusion), batch_of()
    logits = model(batch)
    assert logits.shape == (4, ANSWERS)
    expected = torch.stack([explicit(model, aggregator, cross, fusion, row(batch, b)) for b in range(4)])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    sources = list(model.parameters())
    ours, theirs = (
        torch.autograd.grad(x.sin().sum(), sources, allow_unused=True) for x in (logits, expected)
    )
    for name, one, other in zip(dict(model.named_parameters()), ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("cross", "aggregator", "text_aggregator"),
    [
        (CLS, "gpo", ""),
        ("", "score_attention(heads=2)", ""),
        (CLS, "xpool(heads=2)", "mean"),
        (CROSS, "slots(k=2, heads=2, head_width=4)", "pie(k=2)"),
    ],
)
def test_padding_and_batch_mates_do_not_change_logits(cross, aggregator, text_aggregator):
    model = made(cross=cross, aggregator=aggregator, text_aggregator=text_aggregator)
    batch = batch_of()
    logits = model(batch)
    assert logits.isfinite().all()
    torch.testing.assert_close(model(batch_of(pad=3)), logits, rtol=0, atol=1e-9)
    for b in range(4):
        torch.testing.assert_close(model(row(batch, b))[0], logits[b], rtol=0, atol=1e-9)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_global_feature_reaches_text_aggregator():
    text = Words({"words": WORDS}, width=12, embedding=8, dropout=0.0)
    model = made(text=text, cross=CROSS, aggregator="mean", text_aggregator="pie(k=2, width=12)")
    batch = batch_of()
    logits = model(batch)
    one = row(batch, 0)
    state = {k.removeprefix("cross."): x for k, x in model.named_parameters()}
    embedded, _, global_feature = model.text.encoder(one["text"], one["text_mask"])
    v, t = cross_modal_of(
        state, 2, 1, model.visual.encoder(one["visual"], one["visual_mask"])[0][0], embedded[0]
    )
    pooled = model.text.aggregator(t[None], one["text_mask"], global_feature_BS=global_feature)
    code = pooled.vectors.mean(dim=1)
    fused = torch.cat((model.visual_feed(v.mean(dim=0)[None]), model.text_feed(code)), dim=1)
    torch.testing.assert_close(logits[:1], model.classifier(fused), rtol=0, atol=1e-10)
