"""Decoders of several architectures as text encoders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import save_decoder

from polypool.encoders.text.tokenizers import pad_tokens
from polypool.infra.registry import AGGREGATORS, BACKBONES, ENCODERS

KINDS = ("llama", "qwen3", "mistral", "gpt2", "phi3")
TEXTS = ("a dog and a dog", "one")


@pytest.fixture(params=KINDS)
def name(request, tmp_path) -> str:
    torch.manual_seed(0)
    return save_decoder(tmp_path / "decoder", request.param)


def made(name: str, **params):
    kind = ENCODERS.get("decoder")
    assets = kind.prepare((), name=name, **params)
    torch.manual_seed(0)
    encoder = kind(assets, name=name, width=6, **params).eval()
    encoder.load_pretrained()
    return encoder, kind.tokenizer(assets)


def read(tokenizer, *texts: str):
    lines = [[number for word in words for number in word] for words in tokenizer.encode(texts)]
    numbers = np.array([number for line in lines for number in line])
    return pad_tokens(numbers, np.array([len(line) for line in lines]), tokenizer)


def test_decoder_states_match_transformers_despite_padding(name):
    from transformers import AutoModel

    encoder, tokenizer = made(name)
    token_BL, mask_BL = read(tokenizer, *TEXTS)
    assert token_BL[0, -1] == tokenizer.end, "the end token must be appended"
    assert mask_BL.sum(dim=1).tolist() == [6, 2]
    x_BND, mask_BN = encoder(token_BL, mask_BL)
    whole = AutoModel.from_pretrained(name).eval()
    for row, size in enumerate((6, 2)):
        alone = encoder.linear(whole(input_ids=token_BL[row : row + 1, :size]).last_hidden_state)
        torch.testing.assert_close(x_BND[row, :size], alone[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        AGGREGATORS.build("last", 6)(x_BND, mask_BN).vectors, torch.stack([x_BND[0, 5], x_BND[1, 1]])
    )
    x_BND.sum().backward()
    assert [name for name, weight in encoder.named_parameters() if weight.grad is None] == []


@pytest.mark.parametrize(("starts", "end"), [(False, False), (True, True), (True, False)])
def test_decoder_adds_configured_start_and_end_tokens(starts, end, tmp_path):
    name = save_decoder(tmp_path / "decoder", "llama", starts=starts)
    encoder, tokenizer = made(name, end=end)
    token_BL, mask_BL = read(tokenizer, *TEXTS)
    words = [tokenizer.subwords(row[kept].tolist()) for row, kept in zip(token_BL, mask_BL, strict=True)]
    first, last = ["[CLS]"] * starts, ["[SEP]"] * end
    assert words == [[*first, "a", "dog", "and", "a", "dog", *last], [*first, "one", *last]]
    assert encoder(token_BL, mask_BL)[0].shape == (2, token_BL.shape[1], 6)


def test_decoder_ends_with_the_token_that_its_tokenizer_appends(tmp_path):
    _, tokenizer = made(save_decoder(tmp_path / "decoder", "qwen3", ends="[MASK]"))
    token_BL, _ = read(tokenizer, "one")
    assert tokenizer.subwords(token_BL[0].tolist()) == ["one", "[MASK]"]


def test_half_precision_decoder_is_loaded_in_float32(tmp_path):
    name = save_decoder(tmp_path / "decoder", "qwen3", dtype="bfloat16")
    encoder, tokenizer = made(name)
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    assert encoder(*read(tokenizer, *TEXTS))[0].dtype == torch.float32
    assert BACKBONES.get("decoder")(name=name)(TEXTS)[1].shape == (2, 8)


@pytest.mark.parametrize("name", ["qwen3"], indirect=True)
def test_decoder_backbone_matches_encoder_states(name):
    encoder, tokenizer = made(name)
    state_BNH, mask_BN = encoder.states(*read(tokenizer, *TEXTS))
    stored = BACKBONES.get("decoder")(name=name)
    for x_ND, state_NH, mask_N in zip(stored(TEXTS), state_BNH, mask_BN, strict=True):
        np.testing.assert_allclose(x_ND, state_NH[mask_N].detach(), rtol=1e-4, atol=1e-6)
    pooled = BACKBONES.get("decoder")(name=name, pooled=True)
    assert [x.shape for x in pooled(TEXTS)] == [(1, 8), (1, 8)]
    np.testing.assert_allclose(pooled(TEXTS)[0][0], stored(TEXTS)[0][-1], rtol=1e-6)
    described = stored.describe()
    assert type(stored).pieces(described, "a dog") == ["a", "dog", "[SEP]"]


def test_decoder_without_position_limit_reads_long_texts(tmp_path):
    path = Path(save_decoder(tmp_path / "decoder", "bloom")) / "config.json"
    config = json.loads(path.read_text())
    del config["max_position_embeddings"]
    path.write_text(json.dumps(config))
    (x_ND,) = BACKBONES.get("decoder")(name=str(path.parent))(["a " * 100])
    assert x_ND.shape == (101, 8)
