"""Aggregators as modules of other frameworks."""

import pytest
import torch
from tiny_models import save_bert

from polypool.infra.errors import InputError
from polypool.integrations.pool import Pool


def test_pool_works_with_and_without_mask():
    pool, x_BND = Pool("gpo", 8), torch.randn(3, 5, 8)
    mask_BN = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    whole = torch.ones(3, 5, dtype=torch.bool)
    torch.testing.assert_close(pool(x_BND), pool.aggregator(x_BND, whole).vectors)
    torch.testing.assert_close(pool(x_BND, mask_BN), pool.aggregator(x_BND, mask_BN.bool()).vectors)
    assert not torch.allclose(pool(x_BND, mask_BN)[0], pool(x_BND)[0])
    assert pool.width == 8


@pytest.mark.parametrize("spec", ["late", "xpool", "map(k=2)", "probabilistic"])
def test_pool_requires_one_vector_per_set(spec):
    with pytest.raises(InputError, match="does not return one vector per set"):
        Pool(spec, 16)


@pytest.mark.parametrize("spec", ["mean", "gpo", "map"])
def test_sentence_transformers_pooling_saves_and_loads(spec, tmp_path):
    pytest.importorskip(
        "sentence_transformers", reason="not installed (pip install 'polypool[integrations]')"
    )
    from polypool.integrations.sentence_transformers import Pooling

    pooling = Pooling(spec, 16).eval()
    pooling.save(str(tmp_path))
    tokens, mask_BN = torch.randn(2, 4, 16), torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    loaded = Pooling.load(str(tmp_path)).eval()
    ours, theirs = (
        of({"token_embeddings": tokens, "attention_mask": mask_BN})["sentence_embedding"]
        for of in (pooling, loaded)
    )
    torch.testing.assert_close(ours, theirs)

    assert pooling.get_embedding_dimension() == 16


def test_reloaded_sentence_transformer_encodes_identically(tmp_path):
    st = pytest.importorskip(
        "sentence_transformers", reason="not installed (pip install 'polypool[integrations]')"
    )
    from sentence_transformers.sentence_transformer.modules import Transformer

    from polypool.integrations.sentence_transformers import Pooling

    save_bert(tmp_path / "bert")
    words = Transformer(str(tmp_path / "bert"))
    model = st.SentenceTransformer(
        modules=[words, Pooling("gpo", words.get_embedding_dimension())], device="cpu"
    )
    model.save_pretrained(str(tmp_path / "model"))
    assert (tmp_path / "model" / "1_Pooling" / "model.safetensors").is_file()
    loaded = st.SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)
    texts = ["a dog", "the cat and a dog"]
    assert (loaded.encode(texts) == model.encode(texts)).all()
