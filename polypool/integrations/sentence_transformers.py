"""Aggregators as the pooling module of a SentenceTransformer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.integrations.pool import Pool

with needed("integrations"):
    from sentence_transformers.base.modules import Module


class Pooling(Module):
    """Pools the tokens of a transformer; trained, saved, loaded and pushed as a module of the model::

        transformer = Transformer("sentence-transformers/all-MiniLM-L6-v2")
        pooling = Pooling("gpo", transformer.get_embedding_dimension())
        model = SentenceTransformer(modules=[transformer, pooling])

    A saved model names this class in its `modules.json`, so loading it needs polypool, and
    `SentenceTransformer(path, trust_remote_code=True)`, as for every module of another package.
    """

    def __init__(self, spec: str, dim: int) -> None:
        """Build the aggregator of a spec for tokens of a width; see `Pool`."""
        super().__init__()
        self.spec, self.dim = spec, dim
        self.config_keys = ["spec", "dim"]
        self.pool = Pool(spec, dim)

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding`, pooled from `token_embeddings` where `attention_mask` is not 0."""
        if "cu_seq_lens_q" in features:
            raise InputError("the tokens are one flat sequence; load the transformer without unpadding")
        tokens_BND: Tensor = features["token_embeddings"]
        return features | {"sentence_embedding": self.pool(tokens_BND, features.get("attention_mask"))}

    def get_embedding_dimension(self) -> int:
        """Return the width of the embeddings."""
        return self.pool.width

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the spec, the width and the weights into a folder."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, **at: Any) -> Pooling:
        """Return the module from a folder or a repository of the hub.

        Args:
            model_name_or_path: folder or repository.
            at: keyword arguments of sentence-transformers, such as `subfolder`, `revision` and `token`.
        """
        where = {
            name: at[name]
            for name in ("subfolder", "token", "cache_folder", "revision", "local_files_only")
            if name in at
        }
        model = cls(**cls.load_config(model_name_or_path, **where))
        return cls.load_torch_weights(model_name_or_path, model=model, **where)
