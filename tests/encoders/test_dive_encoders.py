import pytest
import torch
from torch import nn

from polypool.encoders.text.bigru import BiGRU, Words
from polypool.encoders.visual.stored import PooledGrid
from polypool.infra.registry import AGGREGATORS, ENCODERS
from polypool.tasks.models.branch import Branch

WORDS = {"words": ["a", "dog", "runs"]}
TOKEN_BL = torch.tensor([[1, 5, 6, 7, 2], [1, 6, 2, 0, 0]])
MASK_BL = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def read_by_torch(encoder: Words, token_L: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all states `(L, 2, H)` and the last ones `(2, H)` of torch's GRU over a caption's words."""
    gru = nn.GRU(encoder.width, encoder.rnn.hidden_size, bidirectional=True).double()
    gru.load_state_dict(encoder.rnn.state_dict())
    state_L2H, last_2H = gru(encoder.embed.weight[token_L])
    return state_L2H.unflatten(-1, (2, -1)), last_2H


@pytest.mark.parametrize("summary", ["mean", "last_word"])
def test_words_summary_uses_last_gru_states(summary):
    torch.manual_seed(0)
    encoder = Words(WORDS, width=8, embedding=6, summary=summary).double().eval()
    x_BLE, mask_BL, global_BS = encoder(TOKEN_BL, MASK_BL)
    assert (encoder.width, encoder.global_width) == (6, 8)
    assert torch.equal(mask_BL, MASK_BL)
    assert torch.equal(x_BLE[MASK_BL], encoder.embed.weight[TOKEN_BL[MASK_BL]])
    for global_S, token_L, mask_L in zip(global_BS, TOKEN_BL, MASK_BL, strict=True):
        _, last_2H = read_by_torch(encoder, token_L[mask_L])
        if summary == "mean":
            expected_S = last_2H.mean(dim=0)
        else:  # the backward direction has read only the last word
            expected_S = torch.cat((last_2H[0], read_by_torch(encoder, token_L[mask_L][-1:])[0][0, 1]))
        torch.testing.assert_close(global_S, expected_S, atol=1e-10, rtol=1e-8)


def test_words_and_summary_share_one_dropout_mask():
    torch.manual_seed(0)
    encoder = Words(WORDS, width=4, embedding=6, dropout=0.5)
    x_BLE, _, global_BS = encoder(TOKEN_BL, MASK_BL)
    assert (x_BLE == 0).float().mean() > 0.2
    torch.testing.assert_close(encoder.rnn(x_BLE, MASK_BL.sum(dim=1))[1].mean(dim=0), global_BS)


@pytest.mark.parametrize(
    ("start", "least", "most"),
    [("uniform", 0.099, 0.1), ("scaled", 0.049, 0.05), ("normal", 3.0, 8.0), ("zero", 0.0, 0.0)],
)
def test_words_missing_from_glove_use_start_option(tmp_path, start, least, most):
    path = tmp_path / "glove.txt"
    path.write_text("dog " + " ".join(["9"] * 400) + "\n")
    torch.manual_seed(0)
    words = {"words": ["dog", *(f"w{n}" for n in range(60))]}
    encoder = BiGRU(words, width=2, embedding=400, glove=str(path), start=start)
    encoder.load_pretrained()
    known = encoder.words.index("dog")
    assert encoder.embed.weight[known].tolist() == [9] * 400
    others = encoder.embed.weight.detach()[[n for n in range(len(encoder.words)) if n != known]]
    assert least <= others.abs().max() <= most
    assert len(others.unique(dim=0)) == (1 if start == "zero" else len(others))


def test_glove_retry_looks_up_simpler_spellings(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("tshirt 1 1\nand 2 2\nus 3 3\nt-shirts 4 4\ntshirts 5 5\n")
    words = {"words": ["t-shirt", "and/or", "u.s.", "t-shirts", "zebra"]}

    def found(*, retry: bool) -> list[list[float]]:
        torch.manual_seed(0)
        encoder = Words(words, width=4, embedding=2, glove=str(path), retry=retry, start="zero")
        encoder.load_pretrained()
        return encoder.embed.weight[5:].tolist()

    assert found(retry=True) == [[1, 1], [2, 2], [3, 3], [4, 4], [0, 0]]
    assert found(retry=False) == [[0, 0], [0, 0], [0, 0], [4, 4], [0, 0]]


def test_pooled_grid_keeps_the_cells_and_maps_their_mean():
    torch.manual_seed(0)
    encoder = PooledGrid({"dim": 6}, width=4)
    x_BNF = torch.randn(2, 3, 6).half()
    mask_BN = torch.tensor([[True] * 3, [True, False, False]])
    x_BNF[1, 1:] = torch.nan
    out_BNF, _, global_BS = encoder(x_BNF, mask_BN)
    assert (encoder.width, encoder.global_width) == (6, 4)
    assert torch.equal(out_BNF[mask_BN], x_BNF[mask_BN].float())
    means = torch.stack([x_BNF[0].float().mean(dim=0), x_BNF[1, 0].float()])
    torch.testing.assert_close(global_BS, means @ encoder.fc.weight.T + encoder.fc.bias)


@pytest.mark.parametrize(
    ("encoder", "aggregator", "params"),
    [
        ("words(width=16, embedding=6)", "slots(k=3, head_width=4, width=16, positions=True)", WORDS),
        ("words(width=16, embedding=6)", "pie(k=2, width=16)", WORDS),
        ("words(width=16, embedding=6, summary=last_word)", "pie(k=2, width=16)", WORDS),
        ("pooled_grid(width=16)", "pie(k=2, width=16)", {"dim": 6}),
        ("stacked_regions(width=16)", "transformer_set(k=3, head_width=4)", {"dim": 6}),
    ],
)
def test_branch_trains_every_weight(encoder, aggregator, params):
    torch.manual_seed(0)
    made = ENCODERS.build(encoder, params)
    branch = Branch(made, AGGREGATORS.build(aggregator, made.width))
    x = TOKEN_BL if "words" in params else torch.randn(2, 5, 6)
    embedding_BKD, residual_BKD, _ = branch(x, MASK_BL)
    assert embedding_BKD.shape == residual_BKD.shape == (2, branch.aggregator.num_embeddings, 16)
    torch.testing.assert_close(embedding_BKD.norm(dim=-1), torch.ones(embedding_BKD.shape[:2]))
    (embedding_BKD * torch.randn_like(embedding_BKD)).sum().backward()
    assert all(parameter.grad is not None for parameter in branch.parameters())
    unmoved = [name for name, parameter in branch.named_parameters() if not parameter.grad.any()]
    one_word = ["encoder.rnn.weight_hh_l0_reverse"]  # reads only one word, so without recurrence
    assert unmoved == (one_word if "last_word" in encoder else [])
