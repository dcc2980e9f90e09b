"""Model-Optimizer's own data set, collator and offline training model over an export."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from comparison import Comparison, arguments, train
from modelopt.torch.speculative.eagle.utils import EagleOfflineDataCollator, OfflineSupervisedDataset

LENGTH = 512


def main() -> None:
    run, folder, model = arguments("post_norm")
    print(f"   nvidia-modelopt {version('nvidia-modelopt')}, torch {torch.__version__}")
    # As its training script finds them.
    files = sorted(str(path) for path in folder.rglob("*.pt"))
    if len(files) != len(run):
        sys.exit(f"its glob finds {len(files)} files for {len(run)} samples")
    theirs = OfflineSupervisedDataset(files, answer_only_loss=True)
    compared = Comparison()
    for number, path in enumerate(files):
        sample = theirs[number]
        (ours,) = list(run.select(ids=[Path(path).stem]))
        compared.equal("input_ids", ours["token_ids"], sample["input_ids"])
        compared.equal("loss_mask", ours["loss_mask"], sample["loss_mask"])
        compared.equal("hidden_states", ours["final"], sample["base_model_hidden_states"])
        compared.equal("aux_hidden_states", ours["aux"], sample["aux_hidden_states"])
        if sample["base_hidden_prenorm"]:
            sys.exit("it takes the post-norm export for pre-norm")
    compared.report(f"OfflineSupervisedDataset, {len(files)} samples")
    collate = EagleOfflineDataCollator(LENGTH)
    batches = [collate([theirs[place] for place in range(start, start + 4)]) for start in range(0, len(files) - 3, 4)]
    compare_batches(compared, batches, [Path(path).stem for path in files], run)
    module = make_module(model)
    train("EAGLE-3 module, offline, 3 draft steps", module, batches, lambda batch: module(**batch).loss, 3e-4)


def compare_batches(compared: Comparison, batches: list[dict[str, Any]], ids: list[str], run: Any) -> None:
    """Its batches are ours, padded to one length; nothing is shifted but its labels."""
    for number, batch in enumerate(batches):
        for row, sample_id in enumerate(ids[4 * number : 4 * number + 4]):
            (ours,) = list(run.select(ids=[sample_id]))
            T = min(len(ours["token_ids"]), LENGTH)
            outputs = batch["base_model_outputs"]
            compared.equal("collated input_ids", ours["token_ids"][:T], batch["input_ids"][row, :T])
            compared.equal("collated loss_mask", ours["loss_mask"][:T], batch["loss_mask"][row, :T])
            compared.equal("collated aux", ours["aux"][:T], outputs["aux_hidden_states"][row, :T])
            compared.equal("collated final", ours["final"][:T], outputs["base_model_hidden_states"][row, :T])
    compared.report("EagleOfflineDataCollator")


def make_module(model: Path) -> torch.nn.Module:
    """The base model without its layers, turned into its drafter."""
    import modelopt.torch.speculative as speculative
    from modelopt.torch.speculative.utils import load_vlm_or_llm

    base = load_vlm_or_llm(str(model), use_offline_training=True, dtype=torch.bfloat16, device_map="cpu")
    text = base.config
    architecture = {
        "use_aux_hidden_state": True,
        "intermediate_size": text.intermediate_size,
        "num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": text.num_key_value_heads,
        "head_dim": text.hidden_size // text.num_attention_heads,
        "hidden_size": text.hidden_size,
        "draft_vocab_size": text.vocab_size,
        "_attn_implementation": "eager",
    }
    settings = {"eagle_offline": True, "eagle_use_torch_compile": False, "eagle_architecture_config": architecture}
    speculative.convert(base, [("eagle", settings)])
    return base.train()


if __name__ == "__main__":
    main()
