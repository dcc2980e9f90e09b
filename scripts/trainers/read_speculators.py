"""speculators' own data set, shift, collator and drafter over an export."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import torch
from comparison import Comparison, arguments, train
from speculators.losses.utils import resolve_loss_config
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset, CollateFn
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
from transformers import AutoConfig, LlamaConfig

from eaglefeed import PackedBatchSampler, PackedCollator

PACK_TOKENS = 1024


def main() -> None:
    run, folder, model = arguments("pre_norm")
    print(f"   speculators {version('speculators')}, torch {torch.__version__}, datasets {version('datasets')}")
    rows = ArrowDataset(PACK_TOKENS, folder, on_missing="raise")
    if list(rows.approx_lengths) != run.lengths.tolist():
        sys.exit("its lengths are not the run's")
    compared = Comparison()
    for number in range(len(run)):
        ours, theirs = run[number], rows[number]
        compared.equal("input_ids", ours["token_ids"], theirs["input_ids"])
        compared.equal("loss_mask", ours["loss_mask"], theirs["loss_mask"])
        compared.equal("hidden_states", ours["aux"], theirs["hidden_states"])
        compared.equal("verifier_last_hidden_states", ours["final"], theirs["verifier_last_hidden_states"])
    compared.report(f"ArrowDataset, {len(run)} samples")

    width = run.identity.hidden_size
    collate = CollateFn(PACK_TOKENS, width, dtype=torch.bfloat16, preprocess=shift_batch)
    batches = []
    for pack in PackedBatchSampler(run.lengths, PACK_TOKENS, rank=0, world_size=1):
        theirs = collate([rows[number] for number in pack])
        ours = PackedCollator(PACK_TOKENS)([run[number] for number in pack])
        for name, tensor in ours.items():
            compared.equal(f"collated {name}", tensor, theirs[name])
        batches.append({name: theirs[name] for name in ours})
    compared.report("shift_batch and CollateFn against PackedCollator")
    drafter = make_drafter(folder, model, run.identity.vocab_size, run.layer_ids)

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return drafter(**batch, ttt_steps=3, loss_config=resolve_loss_config("kl_div", "eager"))[1]

    train("Eagle3DraftModel, 3 draft steps", drafter, batches, loss_of, 3e-4)


def make_drafter(folder: Path, model: Path, vocabulary: int, layers: tuple[int, ...]) -> Eagle3DraftModel:
    """Its drafter of one layer, over the token frequencies of the export."""
    counts = torch.load(folder / "token_freq.pt", weights_only=True)
    d2t, t2d = build_vocab_mappings_from_distribution(counts, 4096, vocabulary)
    target = AutoConfig.from_pretrained(model)
    config = LlamaConfig(**{**target.to_dict(), "num_hidden_layers": 1})
    drafter = Eagle3DraftModel.from_training_args(
        config,
        t2d,
        d2t,
        draft_vocab_size=4096,
        norm_before_residual=False,
        ttt_steps=3,
        verifier_name_or_path=str(model),
        target_layer_ids=[layer + 1 for layer in layers],
        draft_attn_impl="eager",
    )
    return drafter.to(torch.bfloat16)


if __name__ == "__main__":
    main()
