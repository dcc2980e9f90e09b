"""Vision-language models are served with text alone: conversations reach the engine as token ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def model_config(original: Callable[..., None], config: Any, *args: Any, **kwargs: Any) -> None:
    """Hook: multimodal processing is off unless it was asked for (Kimi-K2.5 wants its image processor otherwise)."""
    if kwargs.get("enable_multimodal") is None:
        kwargs["enable_multimodal"] = False
    original(config, *args, **kwargs)
