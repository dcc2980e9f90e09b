"""Train a small EAGLE-3 style drafter from a run, in plain PyTorch, to see the states at work.

    python examples/train_drafter.py .eaglefeed/store/tutorial .eaglefeed/models/SmolLM2-135M-Instruct --steps 60

The drafter fuses the captured layers, joins them with the embedding of the next token, runs one causal layer and asks
the target's own head. It learns the target's next distribution one position further. For real training take a trainer:
docs/tutorial.md exports the same run for six of them.

Legend: T tokens, K captured layers, H hidden width, V vocabulary.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import eaglefeed


class Drafter(nn.Module):
    """Captured states [T, K*H] and next tokens [T] to a state [T, H] that the target's head understands."""

    def __init__(self, fused_size: int, hidden_size: int) -> None:
        super().__init__()
        self.fuse = nn.Linear(fused_size, hidden_size, bias=False)
        self.join = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.layer = nn.TransformerEncoderLayer(
            hidden_size, nhead=hidden_size // 64, dim_feedforward=2 * hidden_size, dropout=0.0, norm_first=True
        )
        self.norm = nn.RMSNorm(hidden_size)

    def forward(self, aux: Tensor, next_embedding: Tensor) -> Tensor:
        state = self.join(torch.cat([next_embedding, self.fuse(aux)], dim=-1))
        mask = nn.Transformer.generate_square_subsequent_mask(len(state))
        return self.norm(self.layer(state, src_mask=mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's folder or s3://…")
    parser.add_argument("model", type=Path, help="the target's checkpoint: its embedding and its head are used frozen")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save", type=Path, default=Path("drafter.safetensors"))
    parsed = parser.parse_args()
    torch.manual_seed(0)
    run = eaglefeed.open(parsed.run, final="post_norm")
    embedding, head = load_target(parsed.model)
    held_out, train = range(min(4, len(run) // 4)), range(min(4, len(run) // 4), len(run))
    drafter = Drafter(run[0]["aux"].shape[1], embedding.shape[1])
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-3)
    print(f"before: {agreement(drafter, run, held_out, embedding, head):.1%} of the target's tokens guessed")
    for step in range(parsed.steps):
        loss = loss_of(drafter, run[train[step % len(train)]], embedding, head)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 or step == parsed.steps - 1:
            print(f"step {step:>4}  loss {loss.item():.3f}", flush=True)
    print(f"after:  {agreement(drafter, run, held_out, embedding, head):.1%} of the target's tokens guessed")
    save_file(drafter.state_dict(), parsed.save)
    print(f"saved to {parsed.save}")


def load_target(folder: Path) -> tuple[Tensor, Tensor]:
    """The embedding and the head [V, H], float32; one tensor where the model ties them."""
    tensors = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    embedding = tensors["model.embed_tokens.weight"].float()
    return embedding, tensors.get("lm_head.weight", embedding).float()


def draft(
    drafter: Drafter, sample: dict[str, Tensor], embedding: Tensor, head: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The drafter's logits at 0…T-2, the target's at 1…T-1 (what it should say), and which of them are supervised."""
    next_tokens = sample["token_ids"][1:].long()
    drafted = drafter(sample["aux"][:-1].float(), embedding[next_tokens]) @ head.T
    with torch.no_grad():
        target = sample["final"][1:].float() @ head.T
    return drafted, target, sample["loss_mask"][1:].bool()


def loss_of(drafter: Drafter, sample: dict[str, Tensor], embedding: Tensor, head: Tensor) -> Tensor:
    """Cross entropy against the target's own distribution over the supervised positions."""
    drafted, target, supervised = draft(drafter, sample, embedding, head)
    return functional.cross_entropy(drafted[supervised], target[supervised].softmax(dim=-1))


@torch.no_grad()
def agreement(drafter: Drafter, run: eaglefeed.Dataset, rows: range, embedding: Tensor, head: Tensor) -> float:
    """How often the drafter's first choice is the target's."""
    right = total = 0
    for row in rows:
        drafted, target, supervised = draft(drafter, run[row], embedding, head)
        same = drafted.argmax(dim=-1) == target.argmax(dim=-1)
        right, total = right + int(same[supervised].sum()), total + int(supervised.sum())
    return right / max(1, total)


if __name__ == "__main__":
    main()
