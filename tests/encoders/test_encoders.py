from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch

from polypool.aggregators.ranks.gpo import GPO
from polypool.encoders.text.bert import Subwords
from polypool.encoders.text.bigru import BiGRU, read_glove
from polypool.encoders.text.tokenizers import Vocabulary, as_written, count_words, split_question, split_words
from polypool.encoders.visual.stored import Grid, Regions, StackedRegions
from polypool.infra.compute.batchnorm import SetBatchNorm
from polypool.infra.errors import InputError
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
    """Load recorded weights; returns our name -> recorded name."""
    found = {}
    for ours in branch.state_dict():
        prefix = next((p for p in names if ours.startswith(p)), None)
        if prefix:
            found[ours] = names[prefix] + ours.removeprefix(prefix)
    state = {ours: torch.from_numpy(z[f"{group}/{theirs}"]) for ours, theirs in found.items()}
    branch.load_state_dict(state)
    return found


def mask_of(lengths: np.ndarray, width: int) -> torch.Tensor:
    return torch.arange(width) < torch.from_numpy(lengths)[:, None]


@pytest.mark.parametrize("case", ["eval_ragged", "train_full"])
def test_regions_reproduce_the_recorded_numbers(golden, case):
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
    parameters = dict(branch.named_parameters())
    checked = 0
    for ours, theirs in names.items():
        if f"{case}/grad_param/{theirs}" in z:
            np.testing.assert_allclose(
                parameters[ours].grad, z[f"{case}/grad_param/{theirs}"], atol=2e-5, rtol=1e-4
            )
            checked += 1
    assert checked >= 10


@pytest.mark.parametrize("case", ["ragged", "alone"])
def test_bigru_reproduces_the_recorded_numbers(golden, case):
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
    parameters = dict(branch.named_parameters())
    for ours, theirs in names.items():
        if f"{case}/grad_param/{theirs}" in z:
            np.testing.assert_allclose(
                parameters[ours].grad, z[f"{case}/grad_param/{theirs}"], atol=2e-5, rtol=1e-4
            )


def test_padding_does_not_change_the_regions_in_training():
    torch.manual_seed(0)
    encoder = Regions({"dim": 6}, width=8)
    x, mask = torch.randn(3, 4, 6), mask_of(np.array([4, 2, 1]), 4)
    wide = torch.nn.functional.pad(x.masked_fill(~mask[..., None], 50.0), (0, 0, 0, 3), value=-9.0)
    expected = encoder(x, mask)[0][mask]
    torch.testing.assert_close(encoder(wide, torch.nn.functional.pad(mask, (0, 3)))[0][:, :4][mask], expected)


@pytest.mark.parametrize("kind", [Regions, partial(StackedRegions, dropout=0.0)])
@pytest.mark.parametrize("sizes", [[4, 2, 1], [4, 4, 4]])
def test_regions_are_the_same_with_and_without_pads_among_the_rows(monkeypatch, kind, sizes):
    """A GPU maps pads, too, rather than wait for the number of real elements."""
    torch.manual_seed(0)
    packed = kind({"dim": 6}, width=8).double()
    padded = copy.deepcopy(packed)
    mask, cot = mask_of(np.array(sizes), 4), torch.randn(3, 4, 8, dtype=torch.float64)
    x = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)

    def run(encoder):
        out = encoder(x, mask)[0][mask]
        return out, *torch.autograd.grad((out * cot[mask]).sum(), [x, *encoder.parameters()])

    found = run(packed)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for ours, theirs in zip(found, run(padded), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(packed.buffers(), padded.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_whole_batch_of_regions_is_mapped_by_the_explicit_formula():
    torch.manual_seed(0)
    encoder = Regions({"dim": 6}, width=8).double()
    x, mask = torch.randn(3, 4, 6, dtype=torch.float64), mask_of(np.array([4, 2, 3]), 4)
    real = x[mask]
    hidden = real @ encoder.down.weight.T + encoder.down.bias
    normal = (hidden - hidden.mean(dim=0)) / (hidden.var(dim=0, unbiased=False) + encoder.norm.eps).sqrt()
    mapped = (normal * encoder.norm.weight + encoder.norm.bias).clamp(min=0)
    expected = real @ encoder.fc.weight.T + encoder.fc.bias + mapped @ encoder.up.weight.T + encoder.up.bias
    torch.testing.assert_close(encoder(x, mask)[0][mask], expected, rtol=1e-12, atol=1e-12)


def test_set_batch_norm_is_batch_norm_of_the_real_elements():
    torch.manual_seed(0)
    encoder = Regions({"dim": 6}, width=8)
    reference = torch.nn.BatchNorm1d(4)
    x = torch.randn(15, 4, requires_grad=True)
    mask = mask_of(np.array([5, 2, 1]), 5).flatten()
    ours = encoder.norm(x, mask)[mask]
    theirs = reference(x[mask])
    torch.testing.assert_close(ours, theirs)
    cot = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * cot).sum(), x), torch.autograd.grad((theirs * cot).sum(), x), strict=True
    ):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(encoder.norm.running_var, reference.running_var)
    torch.testing.assert_close(encoder.norm.running_mean, reference.running_mean)


def test_standardised_features_and_the_refusal_without_statistics():
    statistics = {"mean": [1.0, 2.0], "std": [2.0, 0.0]}
    encoder = Grid({"dim": 2, "statistics": statistics}, width=3, standardise=True)
    x = torch.tensor([[[3.0, 2.0], [9.0, 9.0]]], dtype=torch.float16)
    out = encoder.features(x, torch.tensor([[True, False]]))
    assert out.tolist() == [[[1.0, 0.0], [0.0, 0.0]]]
    with pytest.raises(ValueError, match="standardise=False"):
        Grid({"dim": 2, "statistics": None}, standardise=True)


def test_words_are_split_like_a_treebank():
    assert split_words("A man's dog isn't on the T-shirt, e.g. 3.5 metres; café!") == [
        *(
            "a",
            "man",
            "'s",
            "dog",
            "is",
            "n't",
            "on",
            "the",
            "t-shirt",
            ",",
            "e.g",
            ".",
            "3.5",
            "metres",
            ";",
            "café",
            "!",
        ),
    ]
    assert split_words("") == []


def test_questions_are_split_at_white_space():
    assert split_question("What's the man's  T-shirt like,\tand is it red?") == [
        *("what", "'s", "the", "man", "'s", "t-shirt", "like", "and", "is", "it", "red"),
    ]
    assert split_question("??") == []


def test_an_encoder_says_how_its_texts_are_split():
    asked = ["Is it 3.5 o'clock?", "Is it?"]
    assets = BiGRU.prepare(asked, min_count=1, ends=False, split="questions")
    assert assets == {"words": ["is", "it", "3.5", "o'clock"], "ends": False, "split": "questions"}
    assert list(BiGRU.tokenizer(assets).encode(asked[1:])) == [[[5], [6]]]
    older = {key: value for key, value in BiGRU.prepare(asked, min_count=1).items() if key == "words"}
    assert BiGRU.tokenizer(older).split("a b?") == ["a", "b", "?"]
    with pytest.raises(InputError, match="Did you mean 'questions'"):
        BiGRU.prepare(asked, split="question")


def test_the_vocabulary_is_counted_in_a_fixed_order():
    words = count_words(["b a c", "a b", "a d"], min_count=2)
    assert words == ["a", "b"]
    vocabulary = Vocabulary(words)
    assert list(vocabulary.encode(["A zebra b"])) == [[[5], [vocabulary.unknown], [6]]]
    numbers = [1, *(number for (number,) in next(vocabulary.encode(["A zebra b zebra"]))), 2]
    assert as_written(vocabulary, "A zebra b zebra", numbers) == [
        *("<start>", "a", "zebra (unknown)", "b", "zebra (unknown)", "<end>")
    ]
    assert as_written(vocabulary, "a", [5, 4, 5]) == ["a", *vocabulary.subwords([4, 5])], (
        "more than there are words"
    )
    assert vocabulary.subwords([1, 5, 3, 6, 2]) == ["<start>", "a", "<unk>", "b", "<end>"]


def test_bytes_in_captions_never_become_words():
    assert "b" not in split_words(b"caf\xc3\xa9 table".decode())


def test_captions_are_padded_with_their_ends():
    captions = Captions(["a b", "", "b a a"], Vocabulary(["a", "b"]))
    token, mask = captions.batch(np.array([2, 1, 0])).values()
    assert token.tolist() == [[1, 6, 5, 5, 2], [1, 2, 0, 0, 0], [1, 5, 6, 2, 0]]
    assert mask.sum(dim=1).tolist() == [5, 2, 4]
    assert captions.sizes().tolist() == [4, 2, 5]


def test_captions_without_ends_are_cut_and_never_empty():
    captions = Captions(["a b", "", "b a a a"], Vocabulary(["a", "b"], ends=False), limit=3)
    token, mask = captions.batch(np.array([2, 1, 0])).values()
    assert token.tolist() == [[6, 5, 5], [0, 0, 0], [5, 6, 0]]
    assert mask.sum(dim=1).tolist() == [3, 1, 2]
    assert captions.sizes().tolist() == [2, 0, 3]


def test_glove_words_may_contain_spaces(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("dog 1 2 3\n. . . 4 5 6\nat name@domain.com 7 8 9\ncafé 0.5 0 -1\n", encoding="utf-8")
    vectors = read_glove(path, ["dog", ". . .", "café", "missing"], dim=3)
    assert sorted(vectors) == [". . .", "café", "dog"]
    assert vectors[". . ."].tolist() == [4, 5, 6]
    encoder = BiGRU({"words": ["dog", "unseen"]}, width=4, embedding=3, glove=str(path))
    before = encoder.embed.weight.clone()
    encoder.load_pretrained()
    assert encoder.embed.weight[5].tolist() == [1, 2, 3]
    assert torch.equal(encoder.embed.weight[6], before[6])


def test_a_glove_word_that_is_no_utf8_is_passed_over(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_bytes(b"\xff\xfe 1 2 3\ndog 4 5 6\n")
    assert read_glove(path, ["dog"], dim=3)["dog"].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    "content", ["dog 1 2\n", "dog 1 2 three\n", "dog 1 2 nan\n", "dog 1 2 1e999\n", None]
)
def test_a_broken_glove_file_is_refused(tmp_path, content):
    path = tmp_path / "glove.txt"
    if content:
        path.write_text(content)
    with pytest.raises(InputError, match="glove"):
        read_glove(path, ["dog", "dog 1", "1"], dim=3)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> str:
    """A folder with a random BERT of a few thousand weights and its tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "run", "##ning", "fast", "."]
    (folder / "vocab.txt").write_text("\n".join(words))
    config = BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


def test_bert_trains_from_a_folder_and_is_rebuilt_without_it(tiny_bert):
    from transformers import BertModel

    from polypool.encoders.text.bert import Bert

    assets = Bert.prepare(["a dog"], name=tiny_bert)
    tokenizer = Bert.tokenizer(assets)
    assert isinstance(tokenizer, Subwords)
    assert list(tokenizer.encode(["A dog running."])) == [[[5], [6], [7, 8], [10]]]
    assert tokenizer.subwords([2, 5, 7, 8, 10, 1, 3]) == [
        "[CLS]",
        "a",
        "run",
        "##ning",
        ".",
        "[UNK]",
        "[SEP]",
    ]
    token, mask = Captions(["a dog running .", "dog"], tokenizer).batch(np.array([0, 1])).values()
    assert token[1].tolist() == [2, 6, 3, 0, 0, 0, 0]
    encoder = Bert(assets, width=6, name=tiny_bert)
    encoder.load_pretrained()
    out, _ = encoder.eval()(token, mask)
    hidden = (
        BertModel.from_pretrained(tiny_bert)
        .eval()(input_ids=token, attention_mask=mask.long())
        .last_hidden_state
    )
    torch.testing.assert_close(out, encoder.linear(hidden))
    again = Bert(assets, width=6, name="not/there")
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(again.eval()(token, mask)[0], out)
    encoder.train()(token, mask)[0].sum().backward()
    assert all(p.grad is not None for p in encoder.parameters()), "DDP refuses weights without a gradient"


def test_a_missing_bert_says_what_to_do(monkeypatch):
    from polypool.encoders.text.bert import Bert

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="no-such-bert"):
        Bert.prepare([], name="./no-such-bert")


def test_batch_normalisation_under_bfloat16_has_the_statistics_of_float32():
    draw = torch.Generator().manual_seed(0)
    x_RD = (torch.randn(103 * 36 + 5, 4, generator=draw) + 6).bfloat16()
    real_R = torch.arange(len(x_RD)) < 103 * 36
    ours, exact = SetBatchNorm(4), SetBatchNorm(4).double()
    out_RD, expected_RD = ours(x_RD, real_R)[real_R], exact(x_RD.double(), real_R)[real_R]
    assert out_RD.dtype == torch.bfloat16
    torch.testing.assert_close(ours.running_mean.double(), exact.running_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.running_var.double(), exact.running_var, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(out_RD.double(), expected_RD, rtol=2**-8, atol=1e-3)
