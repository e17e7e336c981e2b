import pytest
import torch

from polypool.encoders.text.bigru import BiGRU, Words
from polypool.encoders.visual.stored import PooledGrid, StackedRegions
from polypool.infra.registry import AGGREGATORS, ENCODERS
from polypool.tasks.models.branch import Branch

WORDS = {"words": ["a", "dog", "runs"]}
TOKEN_BL = torch.tensor([[1, 5, 6, 7, 2], [1, 6, 2, 0, 0]])
MASK_BL = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def gru_states(x_LE: torch.Tensor, rnn: torch.nn.GRU, suffix: str) -> list[torch.Tensor]:
    """One direction of a GRU over one caption, by its equations."""
    into, back, b_into, b_back = (
        getattr(rnn, f"{kind}_{part}_l0{suffix}") for kind in ("weight", "bias") for part in ("ih", "hh")
    )
    state, states = x_LE.new_zeros(rnn.hidden_size), []
    for x in x_LE:
        (r_x, z_x, n_x), (r_h, z_h, n_h) = (into @ x + b_into).chunk(3), (back @ state + b_back).chunk(3)
        reset, keep = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        state = (1 - keep) * torch.tanh(n_x + reset * n_h) + keep * state
        states.append(state)
    return states


def test_words_are_embeddings_and_the_summary_their_last_states():
    torch.manual_seed(0)
    encoder = Words(WORDS, width=4, embedding=6).double().eval()
    x_BLE, mask_BL, global_BS = encoder(TOKEN_BL, MASK_BL)
    assert (encoder.width, encoder.global_width) == (6, 4)
    assert torch.equal(mask_BL, MASK_BL)
    assert torch.equal(x_BLE[MASK_BL], encoder.embed.weight[TOKEN_BL[MASK_BL]])
    expected = []
    for token_L, mask_L in zip(TOKEN_BL, MASK_BL, strict=True):
        x_LE = encoder.embed.weight[token_L[mask_L]]
        last = [gru_states(x_LE, encoder.rnn, "")[-1], gru_states(x_LE.flip(0), encoder.rnn, "_reverse")[-1]]
        expected.append((last[0] + last[1]) / 2)
    torch.testing.assert_close(global_BS, torch.stack(expected), atol=1e-10, rtol=1e-8)
    cot, parameters = torch.randn_like(global_BS), list(encoder.parameters())
    outputs = (global_BS, torch.stack(expected))
    ours, theirs = (torch.autograd.grad((out * cot).sum(), parameters) for out in outputs)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-7)


def test_words_drop_the_same_values_for_elements_and_summary():
    torch.manual_seed(0)
    encoder = Words(WORDS, width=4, embedding=6, dropout=0.5)
    x_BLE, _, global_BS = encoder(TOKEN_BL, MASK_BL)
    assert (x_BLE == 0).float().mean() > 0.2
    torch.testing.assert_close(encoder.rnn(x_BLE, MASK_BL.sum(dim=1))[1].mean(dim=0), global_BS)


def test_words_may_be_summed_up_at_the_last_word():
    torch.manual_seed(0)
    encoder = Words(WORDS, width=8, embedding=6, summary="last_word").double().eval()
    assert (encoder.global_width, encoder.rnn.hidden_size) == (8, 4)
    _, _, global_BS = encoder(TOKEN_BL, MASK_BL)
    expected = []
    for token_L, mask_L in zip(TOKEN_BL, MASK_BL, strict=True):
        x_LE = encoder.embed.weight[token_L[mask_L]]
        forward = gru_states(x_LE, encoder.rnn, "")[-1]
        expected.append(torch.cat((forward, gru_states(x_LE[-1:], encoder.rnn, "_reverse")[0])))
    torch.testing.assert_close(global_BS, torch.stack(expected), atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(
    ("start", "least", "most"),
    [("uniform", 0.099, 0.1), ("scaled", 0.049, 0.05), ("normal", 3.0, 8.0), ("zero", 0.0, 0.0)],
)
def test_words_without_a_vector_start_as_told(tmp_path, start, least, most):
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


def test_words_that_glove_lacks_are_tried_again_in_a_simpler_form(tmp_path):
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


def explicit_regions(encoder: StackedRegions, x_PF: torch.Tensor, norm: torch.nn.BatchNorm1d) -> torch.Tensor:
    first_PD = x_PF @ encoder.fc.weight.T + encoder.fc.bias
    hidden_PH = norm(first_PD @ encoder.down.weight.T + encoder.down.bias).clamp(min=0)
    return first_PD + hidden_PH @ encoder.up.weight.T + encoder.up.bias


@pytest.mark.parametrize("training", [True, False])
def test_stacked_regions_against_the_formula(training):
    torch.manual_seed(0)
    encoder = StackedRegions({"dim": 6}, width=8, dropout=0.0).double().train(training)
    reference = torch.nn.BatchNorm1d(4).double().train(training)
    encoder.norm.running_mean.uniform_()
    reference.load_state_dict(encoder.norm.state_dict())
    x_BNF = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    mask_BN = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    out_BND, _ = encoder(x_BNF, mask_BN)
    expected_PD = explicit_regions(encoder, x_BNF[mask_BN], reference)
    torch.testing.assert_close(out_BND[mask_BN], expected_PD, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(encoder.norm.running_var, reference.running_var)
    cot_PD = torch.randn_like(expected_PD)
    linears = [x_BNF, encoder.fc.weight, encoder.down.weight, encoder.up.weight]
    ours, theirs = (
        torch.autograd.grad((out_PD * cot_PD).sum(), linears) for out_PD in (out_BND[mask_BN], expected_PD)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-7)


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
def test_a_branch_trains_every_weight(encoder, aggregator, params):
    torch.manual_seed(0)
    made = ENCODERS.build(encoder, params)
    branch = Branch(made, AGGREGATORS.build(aggregator, made.width))
    x = TOKEN_BL if "words" in params else torch.randn(2, 5, 6)
    embedding_BKD, residual_BKD = branch(x, MASK_BL)
    assert embedding_BKD.shape == residual_BKD.shape == (2, branch.aggregator.num_embeddings, 16)
    torch.testing.assert_close(embedding_BKD.norm(dim=-1), torch.ones(embedding_BKD.shape[:2]))
    (embedding_BKD * torch.randn_like(embedding_BKD)).sum().backward()
    assert all(parameter.grad is not None for parameter in branch.parameters())
    unmoved = [name for name, parameter in branch.named_parameters() if not parameter.grad.any()]
    one_word = ["encoder.rnn.weight_hh_l0_reverse"]  # of a direction that has read nothing before
    assert unmoved == (one_word if "last_word" in encoder else [])
