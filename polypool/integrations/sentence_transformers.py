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
    """Pools the tokens of a transformer; trained, saved, loaded and pushed with the model that it is a module of::

        transformer = Transformer("sentence-transformers/all-MiniLM-L6-v2")
        pooling = Pooling("gpo", transformer.get_embedding_dimension())
        model = SentenceTransformer(modules=[transformer, pooling])

    A saved model names this class in its `modules.json`: who loads it needs polypool, too, and says so with
    `SentenceTransformer(path, trust_remote_code=True)`, as for every module of another package.
    """

    def __init__(self, spec: str, dim: int) -> None:
        """Build the aggregator that a spec names, for tokens of a width; see `Pool`."""
        super().__init__()
        self.spec, self.dim = spec, dim
        self.config_keys = ["spec", "dim"]
        self.pool = Pool(spec, dim)

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add the `sentence_embedding` of the `token_embeddings`, of which `attention_mask` tells the real ones."""
        if "cu_seq_lens_q" in features:
            raise InputError("the tokens are of one flat sequence; load the transformer without unpadding")
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
            at: what sentence-transformers gives: `subfolder`, `revision`, `token` and others.
        """
        where = {
            name: at[name]
            for name in ("subfolder", "token", "cache_folder", "revision", "local_files_only")
            if name in at
        }
        model = cls(**cls.load_config(model_name_or_path, **where))
        return cls.load_torch_weights(model_name_or_path, model=model, **where)
