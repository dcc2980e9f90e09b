"""SpecForge's own offline reader, normalizer, collator and training model over an export."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from comparison import Comparison, arguments, train
from specforge.algorithms.eagle3.data import normalize_offline_sample
from specforge.algorithms.eagle3.model import OnlineEagle3Model
from specforge.data.utils import DataCollatorWithPadding
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
from specforge.modeling.target.target_head import TargetHead
from specforge.runtime.contracts import TrainBatch
from specforge.runtime.data_plane.feature_store import LocalFeatureStore
from specforge.runtime.data_plane.offline_reader import OfflineManifestReader
from specforge.training.strategies.base import Eagle3TrainStrategy
from transformers import AutoConfig, LlamaConfig

from eaglefeed import PaddedCollator

MAX_LENGTH = 4096


def main() -> None:
    run, folder, model = arguments("post_norm")
    print(f"   specforge {version('specforge')}, torch {torch.__version__} (it pins 2.11.0)")
    reader = OfflineManifestReader(str(folder), max_len=MAX_LENGTH, validate_files=True)
    store, compared, samples = LocalFeatureStore(), Comparison(), {}
    for ref in reader.read():
        raw, lease = store.get(ref)
        # Its reader orders files by their names as text; the number in the name is ours.
        number = int(Path(ref.feature_store_uri).stem.removeprefix("data_"))
        ours, samples[number] = run[number], normalize_offline_sample(raw, MAX_LENGTH)
        compared.equal("input_ids", ours["token_ids"], raw["input_ids"])
        compared.equal("loss_mask", ours["loss_mask"], raw["loss_mask"])
        compared.equal("hidden_state", ours["final"][None], raw["hidden_state"])
        compared.equal("aux_hidden_state", ours["aux"][None], raw["aux_hidden_state"])
        store.release(lease)
    if len(samples) != len(run):
        sys.exit(f"its reader found {len(samples)} samples of {len(run)}")
    compared.report(f"OfflineManifestReader, {len(samples)} samples")

    batches = []
    for start in range(0, len(run), 4):
        numbers = range(start, min(start + 4, len(run)))
        theirs = DataCollatorWithPadding()([samples[number] for number in numbers])
        ours = PaddedCollator(MAX_LENGTH)([run[number] for number in numbers])
        for name in ("input_ids", "attention_mask", "loss_mask", "hidden_state", "target"):
            compared.equal(f"collated {name}", ours[name], theirs[name])
        batches.append(theirs)
    compared.report("DataCollatorWithPadding against PaddedCollator")
    strategy = make_strategy(folder, model)
    metadata = {"target_repr": "hidden_state"}

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        tensors = {name: tensor for name, tensor in batch.items() if tensor is not None}
        return strategy.forward_loss(TrainBatch([], "eagle3", tensors, metadata)).loss

    short = [batch for batch in batches if batch["input_ids"].shape[1] <= 200]
    train("Eagle3TrainStrategy, 3 draft steps", strategy.trainable_module(), short, loss_of, 3e-4)


def make_strategy(folder: Path, model: Path) -> Eagle3TrainStrategy:
    """Its drafter of one layer, its frozen head, and the export's vocabulary mapping."""
    # Its head wants an index beside the weights, and the tied head's real name.
    indexed = folder.parent / "specforge-model"
    indexed.mkdir(exist_ok=True)
    for path in model.iterdir():
        link = indexed / path.name
        if not link.exists():
            link.symlink_to(path.resolve())
    key = "model.embed_tokens.weight"
    (indexed / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {key: "model.safetensors"}}))
    target = AutoConfig.from_pretrained(model)
    mapping = torch.load(folder / "vocab_mapping/vocab_mapping.pt", weights_only=True)
    config = LlamaConfig(
        **{
            name: getattr(target, name)
            for name in (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_attention_heads",
                "num_key_value_heads",
                "rms_norm_eps",
                "max_position_embeddings",
                "hidden_act",
            )
        },
        num_hidden_layers=1,
        draft_vocab_size=len(mapping["d2t"]),
        pad_token_id=target.pad_token_id,
    )
    draft = LlamaForCausalLMEagle3(config, attention_backend="sdpa")
    draft.load_embedding(str(indexed))
    draft.freeze_embedding()
    draft.load_vocab_mapping(str(folder / "vocab_mapping/vocab_mapping.pt"))
    head = TargetHead.from_pretrained(str(indexed), lm_head_key=key).to("cpu")
    return Eagle3TrainStrategy(OnlineEagle3Model(draft.to(torch.bfloat16), length=3), target_head=head)


if __name__ == "__main__":
    main()
