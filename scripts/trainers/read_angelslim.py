"""AngelSlim's own data set and collator over an export."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from importlib.metadata import version

import torch
from comparison import Comparison, arguments


def main() -> None:
    run, folder, _ = arguments("post_norm")
    print(f"   angelslim {version('angelslim')}, torch {torch.__version__}")
    import_around()
    builder = importlib.import_module(
        "angelslim.compressor.speculative.train.data.dataset_builder.offline_dataset_builder"
    )
    utils = importlib.import_module("angelslim.compressor.speculative.train.data.data_utils")
    theirs = builder.OfflineEagle3Dataset(str(folder))
    if len(theirs) != len(run):
        sys.exit(f"its reader finds {len(theirs)} samples of {len(run)}")
    compared, samples = Comparison(), []
    for number, path in enumerate(theirs.ckpt_files):
        ours, sample = run[int(path.stem.removeprefix("data_"))], theirs[number]
        compared.equal("input_ids", ours["token_ids"][None], sample["input_ids"])
        compared.equal("loss_mask", ours["loss_mask"][None], sample["loss_mask"])
        compared.equal("hidden_states (captured)", ours["aux"][None], sample["hidden_states"])
        compared.equal("target_hiddens (final)", ours["final"][None], sample["target_hiddens"])
        samples.append(sample)
    compared.report(f"OfflineEagle3Dataset, {len(theirs)} samples")
    batch = utils.DataCollatorWithPadding()(samples[:4])
    shapes = {name: list(tensor.shape) for name, tensor in batch.items() if tensor is not None}
    print(f"   DataCollatorWithPadding: {shapes}")


def import_around() -> None:
    """Let its reader's modules be imported although its packages' own ``__init__`` fails; the failure is printed."""
    try:
        importlib.import_module("angelslim.compressor.speculative.train.data.data_utils")
        return
    except ImportError as error:
        print(f"   `import angelslim.compressor` of the released package fails ({error}): only its reader is imported")
    for name in [name for name in sys.modules if name.partition(".")[0] == "angelslim"]:
        del sys.modules[name]
    spec = importlib.util.find_spec("angelslim")
    root = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else ""
    name = "angelslim"
    for part in ("", "compressor", "speculative", "train", "data", "dataset_builder"):
        name, root = (f"{name}.{part}", f"{root}/{part}") if part else (name, root)
        package = types.ModuleType(name)
        package.__path__ = [root]
        sys.modules[name] = package


if __name__ == "__main__":
    main()
