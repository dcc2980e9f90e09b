"""Tiny random checkpoints of the model families, made with transformers, with a tokenizer and a chat template.

Eight layers, hidden width 64, vocabulary 512: enough for parity, small enough for two cores.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

NUM_LAYERS, HIDDEN, VOCABULARY = 8, 64, 512

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}

_DEEPSEEK: dict[str, Any] = {
    **_COMMON,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "rope_theta": 10000.0,
    },
}


_VISION: dict[str, Any] = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "mm_hidden_size": 32,
    "text_hidden_size": HIDDEN,
}


def make_checkpoint(family: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a checkpoint of ``family`` (a key of ``FAMILIES``) into ``folder`` and return it."""
    torch.manual_seed(7)
    folder.mkdir(parents=True, exist_ok=True)
    FAMILIES[family](folder, dtype)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 512 tokens, trained on this file's own text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|bos|>", "<|end|>", "<|pad|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text("utf-8")], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _llama(folder: Path, dtype: torch.dtype) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    _save(LlamaForCausalLM(LlamaConfig(**_COMMON)), folder, dtype)


def _qwen3(folder: Path, dtype: torch.dtype) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    _save(Qwen3ForCausalLM(Qwen3Config(**_COMMON, head_dim=16)), folder, dtype)


def _qwen3_moe(folder: Path, dtype: torch.dtype) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        **_COMMON,
        head_dim=16,
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
    )
    _save(Qwen3MoeForCausalLM(config), folder, dtype)


def _gemma3(folder: Path, dtype: torch.dtype) -> None:
    """With sliding windows of 32 tokens on five layers of six."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(**_COMMON, head_dim=16, sliding_window=32, query_pre_attn_scalar=16)
    _save(Gemma3ForCausalLM(config), folder, dtype)


def _deepseek_v3(folder: Path, dtype: torch.dtype) -> None:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    _save(DeepseekV3ForCausalLM(DeepseekV3Config(**_DEEPSEEK)), folder, dtype)
    _patch_config(folder, rope_scaling=_DEEPSEEK["rope_scaling"], moe_layer_freq=1, rope_theta=10000.0)


def _kimi_k25(folder: Path, dtype: torch.dtype) -> None:
    """Kimi-K2.5's own class around a DeepSeek-V3 text model, with a one-layer vision tower that is never used."""
    from safetensors.torch import load_file, save_file

    _deepseek_v3(folder, dtype)
    weights = load_file(folder / "model.safetensors")
    save_file({f"language_model.{name}": tensor for name, tensor in weights.items()}, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": text.get("torch_dtype") or text.get("dtype"),
        "text_config": text,
        "vision_config": {"vt_num_hidden_layers": 1, "vt_hidden_size": 32, "hidden_size": 32, **_VISION},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


_MROPE: dict[str, Any] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
"""Qwen-VL's positions in three directions; of text alone all three are the same."""

_QWEN_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 64,
    "out_hidden_size": HIDDEN,
}
_QWEN_MARKS: dict[str, Any] = {
    "image_token_id": 500,
    "video_token_id": 501,
    "vision_start_token_id": 502,
    "vision_end_token_id": 503,
}


def _qwen25_vl(folder: Path, dtype: torch.dtype) -> None:
    """With a one-layer vision tower that is never used."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    config = Qwen2_5_VLConfig(
        text_config={**_COMMON, "rope_parameters": _MROPE},
        vision_config={**_QWEN_VISION, "fullatt_block_indexes": [0]},
        **_QWEN_MARKS,
    )
    _save(Qwen2_5_VLForConditionalGeneration(config), folder, dtype)


def _qwen3_vl(folder: Path, dtype: torch.dtype) -> None:
    """The same, with the head width and the norms of Qwen3."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    config = Qwen3VLConfig(
        text_config={**_COMMON, "head_dim": 16, "rope_parameters": {**_MROPE, "mrope_interleaved": True}},
        vision_config={**_QWEN_VISION, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        **_QWEN_MARKS,
    )
    _save(Qwen3VLForConditionalGeneration(config), folder, dtype)


def _save(model: Any, folder: Path, dtype: torch.dtype) -> None:
    for name, parameter in model.named_parameters():
        if "norm" in name:  # weights of exactly 1 would hide a norm that is left out or applied twice
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.to(dtype).save_pretrained(folder)


def _patch_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=1))


FAMILIES: dict[str, Callable[[Path, torch.dtype], None]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma3": _gemma3,
    "deepseek_v3": _deepseek_v3,
    "kimi_k25": _kimi_k25,
    "qwen25_vl": _qwen25_vl,
    "qwen3_vl": _qwen3_vl,
}
