"""Train an EAGLE-3 drafter for a Llama-like model (SmolLM2) from a run, on the CPU, with torch alone.

    python examples/train_drafter.py .eaglefeed/shards/smollm2-demo .eaglefeed/models/SmolLM2-135M-Instruct --steps 400

Training-time test: each step of training drafts several tokens deep, the drafter's own state in place of the target's.
Acceptance: on held-out conversations the target continues greedily by itself; then the drafter drafts from every place
of that continuation, and a draft is accepted while it says what the target said. For real training take a trainer
(docs/trainers.md). Legend: B batch, T tokens, H width, N heads, D head width, Vd draft vocabulary.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import eaglefeed
from eaglefeed.vocabulary import count_supervised, draft_vocabulary

STEP_WEIGHT = 0.8


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of ``x [B, N, T, D]``."""
    D = x.shape[-1]
    angles = positions[:, None].float() * theta ** (-torch.arange(0, D, 2) / D)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    return x * cos + torch.cat([-x[..., D // 2 :], x[..., : D // 2]], -1) * sin


class Target:
    """The frozen target: embedding, final norm and head for training, all layers for its greedy continuations."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        self.weights = {name.removeprefix("model."): tensor.float() for name, tensor in weights.items()}
        self.embedding = self.weights["embed_tokens.weight"]
        self.head = self.weights.get("lm_head.weight", self.embedding)
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.theta = (self.config.get("rope_parameters") or self.config)["rope_theta"]
        self.eps = self.config["rms_norm_eps"]

    def forward(self, ids: Tensor, cache: list[tuple[Tensor, Tensor]], keep: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Continue ``cache`` by ``ids [T]``: logits of the last position and the kept layers' outputs ``[T, K*H]``."""
        start = cache[0][0].shape[2] if cache else 0
        positions, x, kept = torch.arange(start, start + len(ids)), self.embedding[ids][None], []
        for layer in range(self.config["num_hidden_layers"]):
            w = {n: self.weights[f"layers.{layer}.{n}.weight"] for n in ("input_layernorm", "post_attention_layernorm")}
            x = x + self._attend(layer, F.rms_norm(x, x.shape[-1:], w["input_layernorm"], self.eps), positions, cache)
            h = F.rms_norm(x, x.shape[-1:], w["post_attention_layernorm"], self.eps)
            gate, up, down = (self.weights[f"layers.{layer}.mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
            x = x + (F.silu(h @ gate.T) * (h @ up.T)) @ down.T
            if layer in keep:
                kept.append(x[0])
        final = F.rms_norm(x[0, -1], x.shape[-1:], self.weights["norm.weight"], self.eps)
        return final @ self.head.T, torch.cat(kept, -1)

    def _attend(self, layer: int, h: Tensor, positions: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        q, k, v = (
            (h @ self.weights[f"layers.{layer}.self_attn.{name}_proj.weight"].T)
            .view(1, len(positions), heads, -1)
            .transpose(1, 2)
            for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        )
        q, k = rotate(q, positions, self.theta), rotate(k, positions, self.theta)
        if layer < len(cache):
            k, v = torch.cat([cache[layer][0], k], 2), torch.cat([cache[layer][1], v], 2)
            cache[layer] = (k, v)
        else:
            cache.append((k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=len(positions) > 1, enable_gqa=True)
        weight: Tensor = self.weights[f"layers.{layer}.self_attn.o_proj.weight"]
        return out.transpose(1, 2).flatten(2) @ weight.T

    @torch.no_grad()
    def continue_greedily(self, prompt: Tensor, count: int, keep: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Prompt and ``count`` of the target's own tokens, and the kept layers of all but the last."""
        cache: list[tuple[Tensor, Tensor]] = []
        ids, states, new = prompt, [], prompt
        for _ in range(count):
            logits, aux = self.forward(new, cache, keep)
            new = logits.argmax(-1, keepdim=True)
            ids, states = torch.cat([ids, new]), [*states, aux]
        return ids, torch.cat(states)


class Drafter(nn.Module):
    """EAGLE-3's drafter: captured layers fused to H, the next token's embedding beside them, one layer, a head."""

    def __init__(self, target: Target, num_layers: int, draft_size: int) -> None:
        super().__init__()
        H, self.heads, self.theta = target.config["hidden_size"], target.heads, target.theta
        self.fuse = nn.Linear(num_layers * H, H, bias=False)
        self.qkv = nn.Linear(2 * H, 3 * H, bias=False)
        self.out = nn.Linear(H, H, bias=False)
        inner = target.config["intermediate_size"]
        self.up, self.down = nn.Linear(H, 2 * inner, bias=False), nn.Linear(inner, H, bias=False)
        self.token_norm, self.state_norm, self.mlp_norm, self.norm = (nn.RMSNorm(H, eps=1e-5) for _ in range(4))
        self.head = nn.Linear(H, draft_size, bias=False)

    def step(self, embedded: Tensor, state: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One draft step at every place: embeddings and states ``[B, T, H]`` to the next states.

        ``past`` holds keys and values of the steps before: a place sees all earlier places of the first step, and of
        the later steps only its own chain.
        """
        B, T, H = state.shape
        joined = torch.cat([self.token_norm(embedded), self.state_norm(state)], -1)
        q, k, v = self.qkv(joined).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        positions = torch.arange(T) + len(past)
        q, k = rotate(q, positions, self.theta), rotate(k, positions, self.theta)
        past.append((k, v))
        scores = q @ past[0][0].transpose(-1, -2)
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
        own = [(q * key).sum(-1, keepdim=True) for key, _ in past[1:]]
        weights = torch.softmax(torch.cat([scores, *own], -1) / q.shape[-1] ** 0.5, -1)
        mixed = weights[..., :T] @ past[0][1]
        for place, (_, value) in enumerate(past[1:]):
            mixed = mixed + weights[..., T + place, None] * value
        state = state + self.out(mixed.transpose(1, 2).reshape(B, T, H))
        gate, up = self.up(self.mlp_norm(state)).chunk(2, -1)
        return state + self.down(F.silu(gate) * up)

    def logits(self, state: Tensor) -> Tensor:
        return self.head(self.norm(state))  # type: ignore[no-any-return]


def ahead(x: Tensor, count: int) -> Tensor:
    """``x [B, T, …]`` moved left by ``count`` places, zeros at the end."""
    return torch.cat([x[:, count:], torch.zeros_like(x[:, :count])], 1)


def train_loss(drafter: Drafter, target: Target, batch: dict[str, Tensor], selected: Tensor, depth: int) -> Tensor:
    """Soft cross-entropy against the target's distribution, ``depth`` drafts deep, over supervised places."""
    ids, mask, final = batch["input_ids"], batch["loss_mask"], batch["target"].float()
    state, past, loss = drafter.fuse(batch["hidden_state"].float()).float(), [], torch.zeros(())
    for step in range(depth):
        # Place t has seen token t; draft `step` reads token t+1+step and says token t+2+step.
        state = drafter.step(target.embedding[ahead(ids, step + 1)], state, past)
        supervised = ahead(mask, step + 2).bool()
        with torch.no_grad():
            wanted = torch.softmax(ahead(final, step + 1)[supervised] @ target.head[selected].T, -1)
        loss = loss + STEP_WEIGHT**step * F.cross_entropy(drafter.logits(state[supervised]), wanted)
    return loss / sum(STEP_WEIGHT**step for step in range(depth))


@torch.no_grad()
def acceptance(drafter: Drafter, target: Target, held_out: list[Any], selected: Tensor, depth: int) -> list[float]:
    """For each draft position, the share of drafts there that the target says too, all before it being accepted."""
    tried, taken = torch.zeros(depth), torch.zeros(depth)
    for prompt, ids, aux in held_out:
        T = len(ids) - 1 - depth
        state, token, past = drafter.fuse(aux[None, :T]), ids[None, 1 : T + 1], []
        alive = torch.arange(T) >= prompt - 1
        for step in range(depth):
            state = drafter.step(target.embedding[token], state, past)
            token = selected[drafter.logits(state).argmax(-1)]
            right = alive & (token[0] == ids[step + 2 : step + 2 + T])
            tried[step], taken[step], alive = tried[step] + alive.sum(), taken[step] + right.sum(), right
    return (taken / tried.clamp(min=1)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's folder or s3://…")
    parser.add_argument("model", type=Path, help="the target's checkpoint")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--depth", type=int, default=3, help="draft steps in training and in the test")
    parser.add_argument("--draft-vocab", type=int, default=4096)
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--held-out", type=int, default=16, help="conversations kept for the test")
    parser.add_argument("--continuation", type=int, default=40, help="tokens the target says in each of them")
    parser.add_argument("--every", type=int, default=50, help="test after so many steps")
    parser.add_argument("--save", type=Path, default=Path("drafter.safetensors"))
    parser.add_argument("--curve", type=Path, help="write a line of JSON at every test")
    parsed = parser.parse_args()
    torch.manual_seed(0)
    whole, target = eaglefeed.open(parsed.run, final="post_norm"), Target(parsed.model)
    test = whole.select(f"tokens<=512,shuffle=1,first={parsed.held_out}")
    test_ids = {test.sample_id(number) for number in range(len(test))}
    run = whole.select(ids=[name for name in map(whole.sample_id, range(len(whole))) if name not in test_ids])
    vocabulary = draft_vocabulary(count_supervised(run), min(parsed.draft_vocab, len(target.embedding)))
    selected = torch.from_numpy(vocabulary.selected)
    print(
        f"{run!r}\n{len(test)} held out; {len(selected):,} draft tokens say {100 * vocabulary.coverage:.1f} %",
        flush=True,
    )
    held_out = []
    for sample in test:
        prompt = sample["token_ids"][: int(sample["loss_mask"].argmax())]
        held_out.append((len(prompt), *target.continue_greedily(prompt, parsed.continuation, run.layer_ids)))
    drafter = Drafter(target, len(run.layer_ids), len(selected))
    drafter.head.weight.data.copy_(target.head[selected])
    optimizer = torch.optim.AdamW(drafter.parameters(), parsed.rate, betas=(0.9, 0.95))
    # One cycle needs room for its warm-up: fewer than 50 steps take the beginning of 50.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, parsed.rate, max(parsed.steps, 50), pct_start=0.05)
    sampler = eaglefeed.LengthBucketBatchSampler(run.lengths, parsed.batch_tokens, rank=0, world_size=1)
    loader = eaglefeed.Loader(run, sampler, eaglefeed.PaddedCollator(max_length=2048))
    step, epoch, losses, started = 0, 0, [], time.monotonic()
    while step <= parsed.steps:
        loader.set_epoch(epoch)
        epoch += 1
        for batch in loader:
            if step % parsed.every == 0 or step == parsed.steps:
                tell(parsed, step, losses, acceptance(drafter, target, held_out, selected, parsed.depth), started)
                losses = []
            step += 1
            if step > parsed.steps:
                break
            with torch.autocast("cpu", torch.bfloat16):
                loss = train_loss(drafter, target, batch, selected, parsed.depth)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    d2t, t2d = torch.from_numpy(vocabulary.d2t), torch.from_numpy(vocabulary.t2d)
    save_file({**drafter.state_dict(), "d2t": d2t, "t2d": t2d}, parsed.save)
    print(f"saved {parsed.save}")


def tell(parsed: argparse.Namespace, step: int, losses: list[float], accepted: list[float], started: float) -> None:
    """One line of progress, and one of JSON in ``--curve``."""
    length, chain = 0.0, 1.0
    for rate in accepted:
        chain *= rate
        length += chain
    seconds = time.monotonic() - started
    loss = sum(losses) / len(losses) if losses else float("nan")
    rates = " ".join(f"{rate:.2f}" for rate in accepted)
    line = f"step {step:4d}  loss {loss:6.3f}  accepted {rates}  drafts a round {length:.2f}  {seconds:.0f} s"
    print(line, flush=True)
    if parsed.curve:
        record = {"step": step, "loss": loss, "accepted": accepted, "accepted_length": length, "seconds": seconds}
        with parsed.curve.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
