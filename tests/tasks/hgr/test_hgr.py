import pytest
import torch
from corpora import write_role_graphs
from role_batches import batch_of, captions_of, model_of, videos_of
from toy import toy_run

from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Frames
from polypool.infra.spec import Spec
from polypool.tasks.hgr.role_captions import RoleCaptions
from polypool.tasks.inputs.texts import caption_inputs
from polypool.tasks.models.parts import Parts, retrieval_model

AGGREGATORS = ["attention", "gpo", "pie(k=2)"]
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_padding_and_batch_mates_change_nothing(aggregator):
    model, numbers = model_of(aggregator=aggregator), [0, 1, 4, 6, 11]
    together = model.score_batch(batch_of(numbers)).sim_VT
    for row, number in enumerate(numbers):
        video, text = model.encode_visual(videos_of([number])), model.encode_text(captions_of(numbers))
        torch.testing.assert_close(model.score(video, text)[0], together[row], **CLOSE)
        video, text = model.encode_visual(videos_of(numbers)), model.encode_text(captions_of([number]))
        torch.testing.assert_close(model.score(video, text)[:, 0], together[:, row], **CLOSE)
    wide = batch_of(numbers)
    wide["visual"] = torch.nn.functional.pad(wide["visual"], (0, 0, 0, 3), value=float("nan"))
    wide["visual_mask"] = torch.nn.functional.pad(wide["visual_mask"], (0, 3))
    for name, fill in (("text", 3), ("text_mask", False), ("text_spans", True)):
        wide[name] = torch.nn.functional.pad(wide[name], (0, 2), value=fill)
    torch.testing.assert_close(model.score_batch(wide).sim_VT, together, **CLOSE)


def test_k_vectors_are_layer_normed_each_and_their_mean_is_the_root():
    model, batch = model_of(aggregator="pie(k=2)", params={"root_messages": True}), batch_of([0, 3, 8])
    word_BLD, mask_BL = model.text.encoder(batch["text"], batch["text_mask"])
    vector_BKD = model.text.aggregator(word_BLD, mask_BL).vectors
    spans = batch["text_spans"] & mask_BL[:, None]
    given = word_BLD, spans, batch["text_roles"], batch["text_edges"]
    text = model.encode_text(batch)
    _, of_mean = model.text.graph(vector_BKD.mean(dim=1, keepdim=True), *given)
    assert text.vectors.shape == (3, 2, 8)
    torch.testing.assert_close(text.phrase_BPD, of_mean)
    sim_VT = model.level_scores(model.encode_visual(batch), text)[0]
    torch.testing.assert_close(sim_VT, model.similarity(model.encode_visual(batch).vectors, text.vectors))


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_a_batch_without_a_verb_reaches_every_weight(aggregator):
    """With a gradient, if of zeros: DDP waits for each of them."""
    model, batch = model_of(aggregator=aggregator).train(), batch_of([0, 1, 2, 5])
    batch["text_spans"][:, :2] = False
    video, text = model.encode_visual(batch), model.encode_text(batch)
    assert (model.level_scores(video, text)[1] == 0).all()
    model.score_batch(batch).sim_VT.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert (model.visual.verb.fc.weight.grad == 0).all()
    assert model.visual.noun.fc.weight.grad.any()


# two workers; their videos' frames and captions' words differ in number


DEEDS = ["running in a park", "playing with a red ball", "sleeping", "eating an apple and drinking water"]
CAPTIONS = [f"a {who} is {what}" for who in ("man", "woman", "dog") for what in DEEDS]
SPEC = {"verbs": 2, "nouns": 3, "dropout": 0.1}


def test_captions_and_frames_are_learnt(tmp_path):
    """From words to scores with the parts of a run: role graphs, a batch, the loss, a split's scores."""
    torch.manual_seed(0)
    write_role_graphs(tmp_path / "graphs.json", CAPTIONS)
    spec = str(Spec("hgr", {**SPEC, "graphs": f"{tmp_path}/graphs.json"}))
    run = toy_run(model=spec, aggregator="attention", objective="triplet(warmup_epochs=0)")
    assets = BiGRU.prepare(CAPTIONS, min_count=1, ends=False)
    inputs = caption_inputs(run, CAPTIONS, BiGRU.tokenizer(assets))
    assert isinstance(inputs, RoleCaptions)
    frames_BNF, mask_BN = torch.randn(12, 3, 24), torch.ones(12, 3, dtype=torch.bool)
    numbers = torch.arange(12)
    videos = {"visual": frames_BNF, "visual_mask": mask_BN}
    texts = inputs.batch(numbers.numpy())
    visual, text = Frames({"dim": 24}, width=16, dropout=0.0), BiGRU(assets, width=16, embedding=8)
    parts = Parts(run, visual=lambda: visual, text=lambda: text)
    model = retrieval_model(run, parts)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for _ in range(60):
        batch = videos | texts | {"item": numbers, "row": numbers}
        loss = model(batch, epoch=0.0)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    score = model.eval().scorer([(numbers, videos)], [(numbers, texts)])
    hits = score(slice(None), slice(None)).argmax(dim=1) == numbers
    assert losses[-1] < losses[0] / 3
    assert hits.float().mean() > 0.8
