"""The feature store: memory-mapped Arrow files of sets, with a manifest written last."""

from polypool.infra.store.feature_store import FeatureStore
from polypool.infra.store.writer import StoreWriter

__all__ = ["FeatureStore", "StoreWriter"]
