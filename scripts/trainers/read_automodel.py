"""NeMo Automodel's own cache reader, loader and training module over an export."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import torch
from comparison import Comparison, arguments, train
from nemo_automodel.components.datasets.llm.eagle3_cache import (
    CachedEagle3Dataset,
    build_cached_eagle3_dataloader,
    read_manifest,
    read_target_embeddings,
)
from transformers import AutoConfig, AutoModelForCausalLM

from eaglefeed.dataset import Dataset


def main() -> None:
    run, folder, model = arguments("post_norm")
    print(f"   nemo-automodel {version('nemo-automodel')}, torch {torch.__version__}")
    manifest, cached = read_manifest(str(folder)), CachedEagle3Dataset(str(folder))
    if len(cached) != len(run):
        sys.exit(f"its reader finds {len(cached)} samples of {len(run)}")
    compared = Comparison()
    for number in range(len(run)):
        ours, theirs = run[number], cached[number]
        T = len(ours["token_ids"])
        compared.equal("input_ids", ours["token_ids"][1:], theirs["input_ids"][: T - 1])
        compared.equal("loss_mask", ours["loss_mask"][1:], theirs["loss_mask"][: T - 1])
        compared.equal("aux_hidden_states", ours["aux"], theirs["aux_hidden_states"][:T])
        if theirs["attention_mask"].sum() != T or theirs["input_ids"][T - 1 :].any():
            sys.exit(f"sample {number}: its padding does not begin at {T}")
    compared.report(f"CachedEagle3Dataset, {len(run)} samples")
    head = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    compare_distribution(run, cached, head, torch.tensor(manifest["selected_token_ids"]))
    compared.equal(
        "target_embeddings", head.get_input_embeddings().weight.detach(), read_target_embeddings(str(folder))
    )
    compared.report("target_embeddings.safetensors")
    train_steps(folder, model, manifest)


def compare_distribution(
    run: Dataset, cached: CachedEagle3Dataset, model: torch.nn.Module, selected: torch.Tensor
) -> None:
    """Its own target distribution out of the model's own forward, against the cache's."""
    from nemo_automodel.components.speculative.eagle.core import _compute_target_distribution

    mask = torch.zeros(run.identity.vocab_size, dtype=torch.bool)
    mask[selected] = True
    worst = agreed = positions = 0.0
    for number in range(8):
        ids = run[number]["token_ids"]
        with torch.no_grad():
            logits = model(ids[None]).logits[:, 1:]
        probs, said = _compute_target_distribution(logits, selected, mask, run[number]["loss_mask"][None, 1:])
        row = cached[number]
        worst = max(worst, float((row["target_probs"][: len(ids) - 1].float() - probs[0]).abs().max()))
        agreed += float((row["position_mask"][: len(ids) - 1] == said[0]).sum())
        positions += len(ids) - 1
    print(
        f"   target_probs against its own function over a float32 forward of transformers: greatest difference "
        f"{worst:.3f}; position_mask equal at {agreed:.0f} of {positions:.0f} positions"
    )


def train_steps(folder: Path, model: Path, manifest: dict[str, object]) -> None:
    from nemo_automodel.components.speculative.eagle.core import Eagle3TrainerModule
    from nemo_automodel.components.speculative.eagle.draft_llama import LlamaEagle3DraftModel

    config = AutoConfig.from_pretrained(model)
    config.num_hidden_layers, config.draft_vocab_size = 1, manifest["draft_vocab_size"]
    config.target_hidden_size, config.torch_dtype = config.hidden_size, torch.float32
    selected = torch.tensor(manifest["selected_token_ids"])
    mask = torch.zeros(config.vocab_size, dtype=torch.bool)
    mask[selected] = True
    draft = LlamaEagle3DraftModel(config)
    draft.copy_embeddings_from_target(SimpleNamespace(weight=read_target_embeddings(str(folder))))
    module = Eagle3TrainerModule(draft, selected_token_ids=selected, selected_token_mask=mask, ttt_steps=3)
    loader = build_cached_eagle3_dataloader(cache_dir=str(folder), batch_size=1, shuffle=True)

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        wide = {"aux_hidden_states", "target_probs"}
        return module(**{name: each.float() if name in wide else each for name, each in batch.items()}).loss

    train("Eagle3TrainerModule, 3 draft steps", module, loader, loss_of, 3e-4)


if __name__ == "__main__":
    main()
