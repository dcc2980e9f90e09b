"""Real hidden states for the benches: SmolLM2 over the example conversations, made on the spot.

Legend: ``T`` tokens, ``S`` slots, ``H`` hidden width.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed.bits import bits_of_torch
from eaglefeed.errors import UsageError
from eaglefeed.progress import Progress

MODEL = Path(".eaglefeed/models/SmolLM2-135M-Instruct")
CONVERSATIONS = Path(__file__).parent.parent / "examples" / "conversations.jsonl"
LAYERS = (1, 14, 26)
SAMPLE_TOKENS = 1024


def smollm2_states(model: Path, num_tokens: int, quiet: bool) -> list[npt.NDArray[np.uint16]]:
    """Samples of bfloat16 bit patterns ``[T, S, H]``, ``num_tokens`` in all: three layers and the final state.

    Raises UsageError when the model is not there.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (model / "config.json").exists():
        raise UsageError(f"{model}: no model there; `eaglefeed model smollm2 {model}` unpacks it")
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    token_ids = _token_ids(tokenizer, num_tokens)
    samples = []
    with torch.no_grad(), Progress("states of SmolLM2", num_tokens, "tokens", quiet) as progress:
        for start in range(0, num_tokens, SAMPLE_TOKENS):
            samples.append(_forward(network, token_ids[start : min(start + SAMPLE_TOKENS, num_tokens)]))
            progress.update(start + len(samples[-1]))
    return samples


def gaussian_states(num_tokens: int, width: int, slots: int = 4) -> npt.NDArray[np.uint16]:
    """Normal values, each channel with its own scale: what a wide model's states look like to a codec."""
    rng = np.random.default_rng(0)
    scales = np.exp(rng.normal(0, 0.7, (slots, width))).astype(np.float32)
    values = rng.standard_normal((num_tokens, slots, width)).astype(np.float32) * scales
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _forward(network: Any, token_ids: list[int]) -> npt.NDArray[np.uint16]:
    import torch

    final: list[Any] = []
    hook = network.model.norm.register_forward_pre_hook(lambda module, inputs: final.append(inputs[0]))
    try:
        answer = network.model(torch.tensor([token_ids]), output_hidden_states=True, use_cache=False)
    finally:
        hook.remove()
    slots = [answer.hidden_states[layer + 1][0] for layer in LAYERS] + [final[0][0]]
    return np.ascontiguousarray(bits_of_torch(torch.stack(slots, dim=1)))


def _token_ids(tokenizer: Any, num_tokens: int) -> list[int]:
    """The conversations' tokens one behind the other, from the beginning again when they are too few."""
    token_ids: list[int] = []
    while len(token_ids) < num_tokens:
        before = len(token_ids)
        for text in _texts():
            token_ids += tokenizer(text)["input_ids"]
        if len(token_ids) == before:
            raise UsageError(f"{CONVERSATIONS}: no conversations there")
    return token_ids[:num_tokens]


def _texts() -> Iterator[str]:
    for line in CONVERSATIONS.read_text("utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # broken on purpose
        for turn in (record.get("conversations") or record.get("messages") or ()) if isinstance(record, dict) else ():
            text = (turn.get("value") or turn.get("content")) if isinstance(turn, dict) else None
            if isinstance(text, str):
                yield text + "\n"
