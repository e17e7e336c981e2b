import json
import unicodedata

import numpy as np
import pytest
import torch
from gpu_paths import gpu_paths_on_cpu
from tiny_models import save_bert

from polypool.aggregators.ranks.gpo import GPO
from polypool.encoders.text.bert import Subwords
from polypool.encoders.text.bigru import BiGRU, read_glove
from polypool.encoders.text.tokenizers import (
    SPLITS,
    Vocabulary,
    as_written,
    count_words,
    split_question,
    split_treebank,
    split_words,
)
from polypool.encoders.visual.stored import Grid, PooledRegions, Regions
from polypool.infra.compute.batchnorm import SetBatchNorm
from polypool.infra.errors import InputError
from polypool.infra.registry import BACKBONES, ENCODERS
from polypool.tasks.inputs.texts import Captions
from polypool.tasks.models.branch import Branch

REGION_NAMES = {
    "encoder.fc.": "fc.",
    "encoder.down.": "mlp.layers.0.",
    "encoder.norm.": "mlp.bns.0.",
    "encoder.up.": "mlp.layers.1.",
    "aggregator.": "gpool.",
}
TEXT_NAMES = {"encoder.embed.": "embed.", "encoder.rnn.": "rnn.", "aggregator.": "gpool."}


def load_recorded(branch: Branch, z, group: str, names: dict[str, str]) -> dict[str, str]:
    """Load recorded weights; return our name -> recorded name."""
    found = {}
    for ours in branch.state_dict():
        prefix = next((p for p in names if ours.startswith(p)), None)
        if prefix:
            found[ours] = names[prefix] + ours.removeprefix(prefix)
    state = {ours: torch.from_numpy(z[f"{group}/{theirs}"]) for ours, theirs in found.items()}
    branch.load_state_dict(state)
    return found


def assert_recorded_gradients(branch: Branch, z, case: str, names: dict[str, str], *, least: int) -> None:
    parameters = dict(branch.named_parameters())
    recorded = {ours: f"{case}/grad_param/{theirs}" for ours, theirs in names.items()}
    recorded = {ours: key for ours, key in recorded.items() if key in z}
    assert len(recorded) >= least
    for ours, key in recorded.items():
        np.testing.assert_allclose(parameters[ours].grad, z[key], atol=2e-5, rtol=1e-4)


def mask_of(lengths: np.ndarray, width: int) -> torch.Tensor:
    return torch.arange(width) < torch.from_numpy(lengths)[:, None]


@pytest.mark.parametrize("case", ["eval_ragged", "train_full"])
def test_regions_match_recorded_outputs(golden, case):
    z = np.load(golden / "vse_region_encoder.npz", allow_pickle=False)
    branch = Branch(Regions({"dim": 24}, width=16, hidden=8), GPO(16))
    names = load_recorded(branch, z, "params_region", REGION_NAMES)
    branch.train(case == "train_full")
    x = torch.from_numpy(z[f"{case}/images"]).requires_grad_()
    mask = mask_of(z[f"{case}/lengths"], x.shape[1])
    out = branch(x, mask).vectors
    np.testing.assert_allclose(out.detach(), z[f"{case}/embedding"], atol=1e-5, rtol=1e-5)
    if f"{case}/cot_embedding" not in z:
        return
    (out * torch.from_numpy(z[f"{case}/cot_embedding"])).sum().backward()
    np.testing.assert_allclose(x.grad, z[f"{case}/grad_images"], atol=2e-5, rtol=1e-4)
    assert_recorded_gradients(branch, z, case, names, least=10)


@pytest.mark.parametrize("case", ["ragged", "alone"])
def test_bigru_matches_recorded_outputs(golden, case):
    z = np.load(golden / "vse_bigru_text.npz", allow_pickle=False)
    encoder = BiGRU({"words": [f"w{i}" for i in range(45)]}, width=16, embedding=12)
    branch = Branch(encoder, GPO(16))
    names = load_recorded(branch, z, "params", TEXT_NAMES)
    ids = torch.from_numpy(z[f"{case}/ids"]).long()
    mask = mask_of(z[f"{case}/lengths"], ids.shape[1])
    states, _ = encoder(ids, mask)
    np.testing.assert_allclose(states.detach(), z[f"{case}/states"], atol=1e-5, rtol=1e-5)
    out = branch(ids, mask).vectors
    np.testing.assert_allclose(out.detach(), z[f"{case}/embedding"], atol=1e-5, rtol=1e-5)
    if f"{case}/cot_embedding" not in z:
        return
    (out * torch.from_numpy(z[f"{case}/cot_embedding"])).sum().backward()
    assert_recorded_gradients(branch, z, case, names, least=1)


def test_standardise_uses_statistics_and_requires_them():
    statistics = {"mean": [1.0, 2.0], "std": [2.0, 0.0]}
    encoder = Grid({"dim": 2, "statistics": statistics}, width=3, standardise=True)
    x = torch.tensor([[[3.0, 2.0], [9.0, 9.0]]], dtype=torch.float16)
    out = encoder.features(x, torch.tensor([[True, False]]))
    assert out.tolist() == [[[1.0, 0.0], [0.0, 0.0]]]
    with pytest.raises(ValueError, match="standardise=False"):
        Grid({"dim": 2, "statistics": None}, standardise=True)


def test_pooled_regions_concatenate_several_poolings():
    torch.manual_seed(0)
    encoder = PooledRegions({"dim": 3}, width=4, hidden=5, pool="cls mean max").eval()
    assert encoder.fc.weight.abs().max() <= 9**-0.5, "initial weights must be torch's, not Xavier's"
    encoder.input_norm.running_mean.normal_()
    x_BNF = torch.randn(2, 3, 3)
    x_BNF[1, 2] = torch.nan
    sets = x_BNF[0], x_BNF[1, :2]
    x_BI = torch.stack([torch.cat((x[0], x.mean(dim=0), x.amax(dim=0))) for x in sets])
    x_BI = (x_BI - encoder.input_norm.running_mean) / (1 + encoder.input_norm.eps) ** 0.5
    out_BND, mask_BN = encoder(x_BNF, torch.tensor([[True] * 3, [True, True, False]]))
    expected_BD = encoder.fc(x_BI) + encoder.up(encoder.norm(encoder.down(x_BI)).relu())
    torch.testing.assert_close(out_BND, expected_BD[:, None])
    assert mask_BN.tolist() == [[True], [True]]
    with pytest.raises(InputError, match="expected aggregators of one vector"):
        PooledRegions({"dim": 3}, pool="mean slots")


def test_element_dropout_keeps_at_least_one_element():
    torch.manual_seed(0)
    encoder = PooledRegions({"dim": 3}, width=4, element_dropout=0.9)
    mask_BN = torch.arange(8) < torch.tensor([1, 8] * 50)[:, None]
    kept_BN = encoder.kept(mask_BN)
    assert (kept_BN <= mask_BN).all()
    assert kept_BN.any(dim=1).all()
    assert 0 < (mask_BN & ~kept_BN).sum() < mask_BN.sum()
    assert torch.equal(encoder.eval().kept(mask_BN), mask_BN)


@pytest.mark.parametrize(
    ("split", "text", "words"),
    [
        (
            split_words,
            "A man's dog isn't on the T-shirt, e.g. 3.5 metres; café!",
            "a man 's dog is n't on the t-shirt , e.g . 3.5 metres ; café !",
        ),
        (
            split_question,
            "What's the man's  T-shirt like,\tand is it red?",
            "what 's the man 's t-shirt like and is it red",
        ),
        (split_words, "", ""),
        (split_question, "??", ""),
        (split_treebank, "A dog. Its tail.", "a dog . its tail ."),
        (split_treebank, "St. Anne in the U.S. of 1.5 km", "st. anne in the u.s. of 1.5 km"),
        (split_treebank, "Plan B. works, no. 7. too.", "plan b. works , no . 7. too ."),
    ],
)
def test_texts_are_split_into_words(split, text, words):
    assert split(text) == words.split()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("草地上有一只狗。A红色car", "草 地 上 有 一 只 狗 。 a 红 色 car"),
        ("ゲームをするネコ", "ゲーム を す る ネコ"),
        ("ก็กินน้ำ 2", "ก็ กิ น น้ำ 2"),
        ("एक स\u095eेद कुत्ता घास पर", "एक सफ\u093cेद कुत्ता घास पर"),
        ("한국어 문장", "한국어 문장"),
        ("CAFE\u0301 \u2764\ufe0flove", "café ❤ \ufe0f love"),
    ],
    ids=["Chinese", "Japanese", "Thai", "Hindi", "Korean", "decomposed"],
)
def test_split_handles_non_latin_and_decomposed_text(text, words):
    assert split_words(text) == words.split(" ")
    assert split_words(unicodedata.normalize("NFD", text)) == words.split(" ")
    for split in SPLITS.values():
        assert split(text) == split(unicodedata.normalize("NFD", text))
        if "\u2764" not in text and "。" not in text:
            assert split(text) == words.split(" ")


def test_captions_count_cut_texts_and_unknown_words():
    captions = ["a b zebra", "b", "a a a b", "yak a"]
    notes = Captions(captions, Vocabulary(["a", "b"]), limit=3).notes
    assert notes == [
        "1 of 4 texts are cut after 3 words",
        "22.2 % of 9 words are unknown to the text encoder, such as 'zebra', 'yak'",
    ]
    assert Captions(["a b"], Vocabulary(["a", "b"]), limit=2).notes == []


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_texts_are_cut_to_model_positions(tmp_path, kind):
    import transformers as tf

    from polypool.encoders.text.bert import positions

    name = save_bert(tmp_path / "bert", positions=16)
    if kind == "roberta":
        size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = tf.RobertaConfig(vocab_size=13, max_position_embeddings=19, pad_token_id=2, **size)
        tf.RobertaModel(config).save_pretrained(name)
    assets = ENCODERS.get("bert").prepare([], name=name)
    assert positions(assets["config"]) == 16
    captions = Captions(["a dog " * 7, "a dog " * 16], ENCODERS.get("bert").tokenizer(assets))
    assert captions.notes == ["1 of 2 texts are cut to the 14 tokens that the model reads"]
    assert captions.sizes().tolist() == [16, 16]
    token_BL, mask_BL = captions.batch(np.arange(2)).values()
    assert token_BL[0].tolist() == token_BL[1].tolist() == [2, *[5, 6] * 7, 3]
    encoder = ENCODERS.get("bert")(assets, width=6, name=name)
    assert encoder(token_BL, mask_BL)[0].shape == (2, 16, 6)
    backbone = BACKBONES.get("bert")(name=name)
    x_ND, reason = backbone(["a dog " * 7, "a dog " * 7 + "a"])
    assert (len(x_ND), reason) == (16, "17 tokens, and the model reads 16")


def test_vocabulary_counts_encodes_and_displays_words():
    words = count_words(["b a c", "a b", "a d"], min_count=2)
    assert words == ["a", "b"]
    vocabulary = Vocabulary(words)
    assert list(vocabulary.encode(["A zebra b"])) == [[[5], [vocabulary.unknown], [6]]]
    numbers = [1, *(number for (number,) in next(vocabulary.encode(["A zebra b zebra"]))), 2]
    assert as_written(vocabulary, "A zebra b zebra", numbers) == [
        *("<start>", "a", "zebra (unknown)", "b", "zebra (unknown)", "<end>")
    ]
    # more tokens than words
    assert as_written(vocabulary, "a", [5, 4, 5]) == ["a", *vocabulary.subwords([4, 5])]
    assert vocabulary.subwords([1, 5, 3, 6, 2]) == ["<start>", "a", "<unk>", "b", "<end>"]


@pytest.mark.parametrize(
    ("ends", "limit", "tokens", "read", "sizes"),
    [
        (True, 0, [[1, 6, 5, 5, 5, 2], [1, 2, 0, 0, 0, 0], [1, 5, 6, 2, 0, 0]], [6, 2, 4], [4, 2, 6]),
        (False, 3, [[6, 5, 5], [0, 0, 0], [5, 6, 0]], [3, 1, 2], [2, 0, 3]),
    ],
    ids=["with their ends", "without ends, cut, never empty"],
)
def test_captions_are_padded(ends, limit, tokens, read, sizes):
    captions = Captions(["a b", "", "b a a a"], Vocabulary(["a", "b"], ends=ends), limit=limit)
    token, mask = captions.batch(np.array([2, 1, 0])).values()
    assert (token.tolist(), mask.sum(dim=1).tolist()) == (tokens, read)
    assert captions.sizes().tolist() == sizes


def test_glove_words_may_contain_spaces(tmp_path):
    path = tmp_path / "glove.txt"
    lines = "dog 1 2 3\n. . . 4 5 6\nat name@domain.com 7 8 9\ncafé 0.5 0 -1\n"
    path.write_bytes(b"\xff\xfe 1 2 3\n" + lines.encode())  # lines that are not UTF-8 are skipped
    vectors = read_glove(path, ["dog", ". . .", "café", "missing"], dim=3)
    assert sorted(vectors) == [". . .", "café", "dog"]
    assert vectors[". . ."].tolist() == [4, 5, 6]
    encoder = BiGRU({"words": ["dog", "unseen"]}, width=4, embedding=3, glove=str(path))
    before = encoder.embed.weight.clone()
    encoder.load_pretrained()
    assert encoder.embed.weight[5].tolist() == [1, 2, 3]
    assert torch.equal(encoder.embed.weight[6], before[6])
    with pytest.raises(InputError, match=r"has 3 numbers, and the width \(embedding\) is 2"):
        read_glove(path, ["dog"], dim=2)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> str:
    torch.manual_seed(0)
    return save_bert(tmp_path_factory.mktemp("bert"))


def test_bert_loads_from_folder_and_rebuilds_from_assets(tiny_bert):
    from transformers import BertModel

    from polypool.encoders.text.bert import Bert

    assets = Bert.prepare(["a dog"], name=tiny_bert)
    tokenizer = Bert.tokenizer(assets)
    assert isinstance(tokenizer, Subwords)
    assert list(tokenizer.encode(["A dog running and"])) == [[[5], [6], [7, 8], [10]]]
    subwords = ["[CLS]", "a", "run", "##ning", "and", "[UNK]", "[SEP]"]
    assert tokenizer.subwords([2, 5, 7, 8, 10, 1, 3]) == subwords
    token, mask = Captions(["a dog running and", "dog"], tokenizer).batch(np.array([0, 1])).values()
    assert token[1].tolist() == [2, 6, 3, 0, 0, 0, 0]
    encoder = Bert(assets, width=6, name=tiny_bert)
    encoder.load_pretrained()
    out, _ = encoder.eval()(token, mask)
    theirs = BertModel.from_pretrained(tiny_bert).eval()(input_ids=token, attention_mask=mask.long())
    torch.testing.assert_close(out, encoder.linear(theirs.last_hidden_state))
    again = Bert(assets, width=6, name="not/there")
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(again.eval()(token, mask)[0], out)
    encoder.train()(token, mask)[0].sum().backward()
    assert all(p.grad is not None for p in encoder.parameters()), "DDP needs a gradient for every weight"


@pytest.mark.parametrize("kind", ["bert", "mpnet", "deberta-v2", "modernbert", "ultrabert"])
def test_bert_gpu_path_matches_cpu(kind):
    import transformers as tf

    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    size |= {"vocab_size": 13, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    if kind in ("modernbert", "ultrabert"):
        size |= {"bos_token_id": 2, "eos_token_id": 3, "sliding_window": 4, "local_attention": 4}
    torch.manual_seed(0)
    encoder = ENCODERS.get("bert")(
        {"config": tf.AutoConfig.for_model(kind, **size).to_dict()}, width=6
    ).eval()
    for weight in encoder.parameters():
        weight.data.normal_(std=0.4)
    mask_BL = torch.arange(12) < torch.tensor([12, 5])[:, None]
    token_BL = torch.randint(5, 13, (2, 12)) * mask_BL
    expected_BLD, _ = encoder(token_BL, mask_BL)
    with gpu_paths_on_cpu():
        x_BLD, _ = encoder(token_BL, mask_BL)
    torch.testing.assert_close(x_BLD[mask_BL], expected_BLD[mask_BL])


@pytest.mark.parametrize("name", ["bert", "decoder"])
def test_tokenizer_without_fast_version_is_refused(tmp_path, name):
    import transformers as tf

    for part in (tf.CanineConfig(), tf.CanineTokenizer()):
        part.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"its tokenizer, CanineTokenizer, has no fast version"):
        ENCODERS.get(name).prepare((), name=str(tmp_path))


def test_bfloat16_batch_norm_keeps_float32_statistics():
    draw = torch.Generator().manual_seed(0)
    x_RD = (torch.randn(103 * 36 + 5, 4, generator=draw) + 6).bfloat16()
    real_R = torch.arange(len(x_RD)) < 103 * 36
    ours, exact = SetBatchNorm(4), SetBatchNorm(4).double()
    out_RD, expected_RD = ours(x_RD, real_R)[real_R], exact(x_RD.double(), real_R)[real_R]
    assert out_RD.dtype == torch.bfloat16
    torch.testing.assert_close(ours.running_mean.double(), exact.running_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.running_var.double(), exact.running_var, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(out_RD.double(), expected_RD, rtol=2**-8, atol=1e-3)


def test_split_treebank_matches_nltk(golden):
    for case in json.loads((golden / "word_splitting.json").read_text())["cases"]:
        assert split_treebank(case["text"]) == case["words"], case["text"]
