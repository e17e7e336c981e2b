"""The feature store: memory-mapped Arrow files of sets, with a manifest that is written last."""

from infra.store.reader import FeatureStore
from infra.store.writer import StoreWriter

__all__ = ["FeatureStore", "StoreWriter"]
