import pytest
import torch
from role_batches import batch_of, captions_of, model_of, videos_of

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("aggregator", ["attention", "pie(k=2)"])
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
    model, batch = model_of(aggregator="pie(k=2)"), batch_of([0, 3, 8])
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


def test_a_batch_without_a_verb_reaches_every_weight():
    """DDP waits for a gradient of each weight, even a zero one."""
    model, batch = model_of(aggregator="gpo").train(), batch_of([0, 1, 2, 5])
    batch["text_spans"][:, :2] = False
    video, text = model.encode_visual(batch), model.encode_text(batch)
    assert (model.level_scores(video, text)[1] == 0).all()
    model.score_batch(batch).sim_VT.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert (model.visual.verb.fc.weight.grad == 0).all()
    assert model.visual.noun.fc.weight.grad.any()
