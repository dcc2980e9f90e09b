"""Prefill attention on a CPU: exact, causal, one sequence at a time, on the q, k, v just computed."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch.nn.functional import scaled_dot_product_attention


class PrefillAttention(TorchNativeAttnBackend):
    """SGLang's torch_native backend, without its detour through the KV pool where no prefix is cached.

    It also serves MLA models (DeepSeek, Kimi), whose per-head k and v do not fit the latent pool that the stock
    code reads them back from.
    """

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **extra: Any
    ) -> Any:
        if not _is_plain_prefill(k, v, layer, forward_batch):
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        is_latent = layer.qk_head_dim != layer.v_head_dim
        if save_kv_cache and not is_latent:
            location = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, location, k, v)
        output = q.new_empty((q.shape[0], layer.tp_q_head_num * layer.v_head_dim))
        _attend(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            k.view(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.view(-1, layer.tp_v_head_num, layer.v_head_dim),
            output.view(-1, layer.tp_q_head_num, layer.v_head_dim),
            forward_batch.extend_seq_lens_cpu,
            layer,
        )
        return output


def create_backend(runner: Any) -> PrefillAttention:
    """The factory that stands in SGLang's registry under ``torch_native``."""
    return PrefillAttention(runner)


def _is_plain_prefill(k: Any, v: Any, layer: Any, forward_batch: Any) -> bool:
    return (
        k is not None
        and v is not None
        and not layer.is_cross_attention
        and layer.attn_type != AttentionType.ENCODER_ONLY
        and forward_batch.encoder_lens is None
        and not any(forward_batch.extend_prefix_lens_cpu)
    )


def _attend(q: Any, k: Any, v: Any, output: Any, lengths: list[int], layer: Any) -> None:
    """q ``[N, heads, D]``, k, v ``[N, kv heads, D]``; sequences lie one after the other along N."""
    window = layer.sliding_window_size
    window = window if window is not None and window > -1 else None
    is_grouped = layer.tp_q_head_num != layer.tp_k_head_num
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        mask = _window_mask(length, window, q.device) if window is not None and window < length - 1 else None
        attended = scaled_dot_product_attention(
            q[rows].transpose(0, 1).unsqueeze(0),
            k[rows].transpose(0, 1).unsqueeze(0),
            v[rows].transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
            is_causal=mask is None,
            scale=layer.scaling,
            enable_gqa=is_grouped,
        )
        output[rows].copy_(attended.squeeze(0).transpose(0, 1))
        start += length


def _window_mask(length: int, window: int, device: torch.device) -> torch.Tensor:
    positions = torch.arange(length, device=device)
    distance = positions.unsqueeze(1) - positions.unsqueeze(0)
    return (distance >= 0) & (distance <= window)
