"""Checks of the engine's side: SGLang's version, our hooks' targets in it, and the model's files."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from config.model_identity import run_identity
from config.run import RunSettings
from eaglefeed.errors import EaglefeedError
from local.findings import Finding

if TYPE_CHECKING:
    from workers.sglang_plugin.inventory import Hook


def check_sglang(hooks: Sequence[Hook] | None = None) -> Iterator[Finding]:
    """The supported version, and every hook's target with the parameters it was written for."""
    from workers.sglang_plugin.inventory import HOOKS, SUPPORTED_SGLANG, mismatch

    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        fact = "SGLang is not installed (needed on GPU nodes only)"
        yield Finding("sglang", "warning", fact, "pip install 'eaglefeed[engine]'")
        return
    if version != SUPPORTED_SGLANG:
        advice = f"pip install sglang=={SUPPORTED_SGLANG}; another version's hooks are not proved"
        yield Finding("sglang", "wrong", f"SGLang {version}; the hooks are made for {SUPPORTED_SGLANG}", advice)
        return
    yield Finding("sglang", "ok", f"SGLang {version}")
    hooks = HOOKS if hooks is None else hooks
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SGLang's import warns of every kernel that this machine lacks
        wrong = [(hook, problem) for hook in hooks if (problem := mismatch(hook))]
    for hook, problem in wrong:
        advice = f"without it: {hook.without}. Reinstall sglang=={SUPPORTED_SGLANG} unchanged"
        yield Finding("hooks", "wrong", problem, advice)
    if not wrong:
        yield Finding("hooks", "ok", f"all {len(hooks)} targets are there as expected")


def check_model(settings: RunSettings) -> Iterator[Finding]:
    """The checkpoint can be read, the layer ids exist, and what a token weighs."""
    try:
        identity = run_identity(settings)
    except EaglefeedError as error:
        yield Finding("model", "wrong", str(error).partition("\n")[0])
        return
    layers = ", ".join(map(str, identity.layer_ids))
    fact = f"{identity.model}: layers {layers} of {identity.num_layers}, {identity.bytes_per_token:,} bytes a token"
    yield Finding("model", "ok", fact)
