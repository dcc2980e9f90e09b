"""Complete hidden states for training EAGLE-3 drafters.

``eaglefeed.open(url)`` gives a run as a data set (``eaglefeed/dataset.py``); docs/library.md shows the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from eaglefeed.collate import PackedCollator, PaddedCollator
    from eaglefeed.dataset import Dataset
    from eaglefeed.loader import Loader
    from eaglefeed.opening import open_run as open
    from eaglefeed.readahead import prefetch
    from eaglefeed.samplers import LengthBucketBatchSampler, PackedBatchSampler, ShuffledBatchSampler
    from eaglefeed.stream import ShardBatchSampler, ShardStream

__all__ = [
    "Dataset",
    "LengthBucketBatchSampler",
    "Loader",
    "PackedBatchSampler",
    "PackedCollator",
    "PaddedCollator",
    "ShardBatchSampler",
    "ShardStream",
    "ShuffledBatchSampler",
    "open",
    "prefetch",
]

_HOMES = {
    "Dataset": "dataset",
    "LengthBucketBatchSampler": "samplers",
    "Loader": "loader",
    "PackedBatchSampler": "samplers",
    "PackedCollator": "collate",
    "PaddedCollator": "collate",
    "ShardBatchSampler": "stream",
    "ShardStream": "stream",
    "ShuffledBatchSampler": "samplers",
    "open": "opening",
    "prefetch": "readahead",
}


def __getattr__(name: str) -> Any:
    """The public names, imported at first use: the command and the workers import this package too."""
    if name in _HOMES:
        module = importlib.import_module(f"eaglefeed.{_HOMES[name]}")
        value = getattr(module, "open_run" if name == "open" else name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'eaglefeed' has no attribute {name!r}")
