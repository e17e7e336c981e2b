"""CLIP and SigLIP as encoder pairs: scores and embeddings against small random models of transformers."""

import string

import numpy as np
import pytest
import torch
from pictures import noise
from tiny_models import save_clip, save_siglip

from polypool.aggregators.averages.mean import Mean
from polypool.encoders.encoder import TextEncoder
from polypool.infra.registry import AGGREGATORS, BACKBONES, ENCODERS
from polypool.tasks.inputs.texts import Captions
from polypool.tasks.models.branch import Branch
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.objectives.infonce import InfoNCE
from polypool.tasks.similarities.similarity import Cosine
from polypool.testing.parts import EncoderChecks

KINDS = ("clip", "siglip")
CAPTIONS = ["a dog beside the house", "The bird, the boat and the tree!", "dogs", "running a car and one cat"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("pairs")
    return {"clip": save_clip(root / "clip"), "siglip": save_siglip(root / "siglip")}


def whole(folder: str):
    from transformers import AutoImageProcessor, AutoModel

    return AutoModel.from_pretrained(folder).eval(), AutoImageProcessor.from_pretrained(folder, backend="pil")


def theirs(kind: str, folder: str, captions: list[str]) -> dict[str, torch.Tensor]:
    """Return the whole model's text inputs, from the tokenizer's own call."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if kind == "clip":
        words = AutoTokenizer.from_pretrained(folder)
        ended = [f"{words.bos_token}{text}{words.eos_token}" for text in captions]
        return words(ended, padding=True, add_special_tokens=False, return_tensors="pt")
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    strip = str.maketrans("", "", string.punctuation)
    ended = [text.lower().translate(strip) + words.eos_token for text in captions]
    tokens = words(ended, padding="max_length", add_special_tokens=False, return_tensors="pt")
    return {"input_ids": tokens["input_ids"]}  # SigLIP takes no mask


def text_half(kind: str, folder: str, captions: list[str], **params) -> tuple[TextEncoder, dict]:
    encoder_kind = ENCODERS.get(f"{kind}_text")
    assets = encoder_kind.prepare(captions, name=folder, **params)
    encoder = encoder_kind(assets, name=folder, **params)
    encoder.load_pretrained()
    batch = Captions(captions, encoder_kind.tokenizer(assets)).batch(np.arange(len(captions)))
    return encoder.eval(), batch


@pytest.mark.parametrize("kind", KINDS)
def test_pair_scores_match_transformers_model(folders, kind):
    folder, images = folders[kind], [noise(40, 32), noise(32, 50), noise(33, 33)]
    model, processor = whole(folder)
    with torch.no_grad():
        pixels = processor(images, return_tensors="pt")["pixel_values"]
        out = model(pixel_values=pixels, **theirs(kind, folder, CAPTIONS))
        scale, shift = model.logit_scale.exp(), getattr(model, "logit_bias", 0.0)
    expected_VT = (out.logits_per_image - shift) / scale
    assert expected_VT.std() > 0.02
    backbone = BACKBONES.build(f"{kind}(name={folder!r}, pooled=True)")
    features = np.stack(backbone(images))
    assert features.shape == (3, 1, backbone.dim)
    encoder, batch = text_half(kind, folder, CAPTIONS, pooled=True)
    visual = ENCODERS.build("stored", {"dim": backbone.dim, "statistics": None})
    assert encoder.width == visual.width == backbone.dim
    pair = DualEncoder(
        Branch(visual, Mean(visual.width)), Branch(encoder, Mean(encoder.width)), Cosine(), InfoNCE()
    )
    batch |= {"visual": torch.from_numpy(features), "visual_mask": torch.ones(3, 1, dtype=torch.bool)}
    with torch.no_grad():
        found_VT = pair.score(pair.encode_visual(batch), pair.encode_text(batch))
    torch.testing.assert_close(found_VT, expected_VT, atol=1e-5, rtol=0)
    described = backbone.describe()
    assert (described["backbone"], described["pooled"]) == (kind, True)
    assert "pooled" not in BACKBONES.build(f"{kind}(name={folder!r})").describe(), (
        "pooled=False must not be recorded, so that older stores still match"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [None, 6])
def test_token_outputs_are_projected_last_states(folders, kind, width):
    encoder, batch = text_half(kind, folders[kind], CAPTIONS, width=width)
    model, _ = whole(folders[kind])
    tokens = theirs(kind, folders[kind], CAPTIONS)
    with torch.no_grad():
        x_BND, mask_BN = encoder(batch["text"], batch["text_mask"])
        out = model.text_model(**tokens)
        state_BLH = out.last_hidden_state
        own = model.text_projection if kind == "clip" else model.text_model.head
        expected_BLD = (own if width is None else encoder.fc)(state_BLH)
    assert mask_BN.equal(batch["text_mask"])
    assert x_BND.shape == (4, mask_BN.shape[1], encoder.width)
    torch.testing.assert_close(x_BND[mask_BN], expected_BLD[:, : x_BND.shape[1]][mask_BN], atol=1e-5, rtol=0)
    gpo = AGGREGATORS.build("gpo", encoder.width)
    assert gpo(x_BND, mask_BN).vectors.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_are_cut_as_in_pretraining(tmp_path, kind):
    folder = {"clip": save_clip, "siglip": save_siglip}[kind](tmp_path / kind, longest=8)
    captions = ["a dog", "the dog and the cat and the house and the boat and the car"]
    encoder, batch = text_half(kind, folder, captions, pooled=True)
    assert batch["text"].shape[1] == (8 if kind == "clip" else 7)
    texts = [theirs(kind, folder, [caption])["input_ids"][:, :8] for caption in captions]
    texts[1][0, -1] = 1  # the end token of CLIP and SigLIP
    model, _ = whole(folder)
    with torch.no_grad():
        found_BND, mask_BN = encoder(batch["text"], batch["text_mask"])
        expected = [model.get_text_features(input_ids=ids) for ids in texts]
    assert mask_BN.shape == (2, 1)
    for row, features in enumerate(expected):
        features = getattr(features, "pooler_output", features)
        torch.testing.assert_close(found_BND[row], features, atol=1e-5, rtol=0)
    sets, _ = text_half(kind, folder, captions)
    x_BND, mask_BN = sets(batch["text"], batch["text_mask"])
    assert x_BND.shape[:2] == mask_BN.shape == (2, 8 if kind == "clip" else 7)


def test_clip_keeps_end_token_at_every_length(tmp_path):
    encoder, _ = text_half("clip", save_clip(tmp_path / "clip", longest=6), ["a"])
    for size in range(2, 10):
        token_BL = torch.arange(10, 20)[None].masked_fill(torch.arange(10) >= size, 0)
        token_BL[0, size - 1] = 1
        token_BN, mask_BN, last_B = encoder.read(token_BL, torch.arange(10)[None] < size)
        read = min(size, 6)
        assert token_BN[0, :read].tolist() == [*range(10, 9 + read), 1]
        assert (mask_BN.sum(), last_B.tolist()) == (read, [read - 1])


def test_siglip_appends_end_token_and_padding(tmp_path):
    """In SigLIP 2, the padding token differs from the end token."""
    kind, folder = ENCODERS.get("siglip_text"), save_siglip(tmp_path / "siglip", longest=6)
    assets = kind.prepare([], name=folder)
    encoder = kind(assets | {"specials": assets["specials"] | {"pad": 0}}, name=folder)
    for size in range(1, 10):
        token_BL = torch.arange(10, 20)[None]  # masked tokens must not be read
        token_BP, mask_BN, last_B = encoder.read(token_BL, torch.arange(10)[None] < size)
        read = min(size, 5)
        assert token_BP.tolist() == [[*range(10, 10 + read), 1, *[0] * (5 - read)]]
        assert (mask_BN.sum(), mask_BN.shape, last_B.tolist()) == (read, (1, 5), [5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", ["", ", pooled=True", ", width=6", ", width=6, pooled=True"])
def test_text_encoders_pass_encoder_checks(folders, kind, params):
    for check in EncoderChecks(f"{kind}_text(name={folders[kind]!r}{params})").checks():
        check.run()


def test_siglip_1_strips_punctuation_and_siglip_2_does_not(folders):
    kind = ENCODERS.get("siglip_text")
    assets = kind.prepare(CAPTIONS, name=folders["siglip"])
    shouted, said = kind.tokenizer(assets).encode([" The  DOG's, boat! ", "the dogs boat"])
    assert shouted == said
    assert (assets["strips"], kind.tokenizer(assets).ends) == (True, False)
    shouted, said = kind.tokenizer(assets | {"strips": False}).encode(["The DOG's boat", "the dogs boat"])
    assert shouted != said


def test_stored_encoder_returns_given_features():
    for check in EncoderChecks("stored").checks():
        if "gradients" not in check.what:  # it has no weights
            check.run()
    x_BNF = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]], dtype=torch.float16)
    mask_BN = torch.tensor([[True, False]])
    as_is, unit = (ENCODERS.build(f"stored(unit={unit})", {"dim": 2}) for unit in (False, True))
    assert as_is(x_BNF, mask_BN)[0].equal(x_BNF.float())
    torch.testing.assert_close(unit(x_BNF, mask_BN)[0], torch.tensor([[[0.6, 0.8], [0.0, 0.0]]]))
