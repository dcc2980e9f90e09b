"""From evidence to a verdict: a JSON object and a table, and each breach named."""

from __future__ import annotations

from typing import Any

from workers.evidence import Evidence
from workers.parity import LIMITS, Distance

SELF_LIMITS = {"bfloat16": 0.02, "float16": 0.02, "float32": 1e-5}
"""How far the same prompt may lie apart when it is computed in another company: other matrix shapes, other sums."""


def judge(evidence: Evidence) -> dict[str, Any]:
    """The result of ``eaglefeed prove``; ``verdict`` is ``pass`` or ``fail``, ``breaches`` says why."""
    identity = evidence.identity
    limit = LIMITS[identity.dtype, evidence.is_mixture]
    breaches = [*evidence.failures, *_self_breaches(evidence), *_reference_breaches(evidence, limit)]
    if evidence.cached_tokens_max > 0:
        breaches.append(f"cached-tokens: up to {evidence.cached_tokens_max} tokens came from a cache")
    return {
        "model": identity.model,
        "dtype": identity.dtype,
        "engine": identity.engine,
        "prompts": evidence.num_prompts,
        "tokens": evidence.num_tokens,
        "limit": limit,
        "rows_equal_tokens": not evidence.failures,
        "cached_tokens_max": evidence.cached_tokens_max,
        "batch_vs_alone": evidence.batch_vs_alone,
        "chunked_vs_whole": evidence.chunked_vs_whole,
        "chunked_skipped": evidence.chunked_skipped,
        "same_prompt_twice": evidence.same_prompt_twice,
        "shared_prefix": evidence.shared_prefix,
        "layers": [
            {"layer": layer, **_as_json(found)}
            for layer, found in zip(identity.layer_ids, evidence.layers, strict=False)
        ],
        "final_pre_norm": _as_json(evidence.final_pre_norm),
        "final_post_norm": _as_json(evidence.final_post_norm),
        "reference_skipped": evidence.reference_skipped,
        "breaches": breaches,
        "verdict": "fail" if breaches else "pass",
    }


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [
        f"{result['model']} on {result['engine']}, {result['dtype']}: "
        f"{result['prompts']} prompts, {result['tokens']:,} tokens",
        "",
        f"  {'rows equal tokens, all proofs':<34} {'yes' if result['rows_equal_tokens'] else 'NO'}",
        f"  {'cached tokens, at most':<34} {result['cached_tokens_max']}",
    ]
    for name, label in _SELF.items():
        skipped = result["chunked_skipped"] if name == "chunked_vs_whole" else ""
        lines.append(f"  {label:<34} {_number(result[name])}{'  (' + skipped + ')' if skipped else ''}")
    lines += [
        "",
        f"  {'against transformers':<34} {'error':>9} {'by row':>9} {'worst cosine':>13} {'to float32':>11} "
        f"{'its own':>9}",
    ]
    rows = [(f"output of layer {entry['layer']}", entry) for entry in result["layers"]]
    rows += [("final state before the norm", result["final_pre_norm"]), ("after it", result["final_post_norm"])]
    lines += [_row(label, entry) for label, entry in rows if entry]
    if result["reference_skipped"]:
        lines.append(f"  not compared: {result['reference_skipped']}")
    lines += ["", *(f"  BREACH {breach}" for breach in result["breaches"]), f"verdict: {result['verdict']}"]
    return "\n".join(lines)


_SELF = {
    "batch_vs_alone": "in a batch against alone",
    "chunked_vs_whole": "in chunks against one pass",
    "same_prompt_twice": "the same prompt twice",
    "shared_prefix": "rows of a shared prefix",
}


def _self_breaches(evidence: Evidence) -> list[str]:
    limit = SELF_LIMITS[evidence.identity.dtype] * (3 if evidence.is_mixture else 1)
    found = {name: getattr(evidence, name) for name in _SELF}
    return [
        f"{name.replace('_', '-')}: {_SELF[name]}, states are {value:.2g} apart, at most {limit:g}"
        for name, value in found.items()
        if value is not None and value > limit
    ]


def _reference_breaches(evidence: Evidence, limit: float) -> list[str]:
    named = [
        (f"layer {layer}", found) for layer, found in zip(evidence.identity.layer_ids, evidence.layers, strict=False)
    ]
    named += [("final state before the norm", evidence.final_pre_norm)] if evidence.final_pre_norm else []
    named += [("final state after the norm", evidence.final_post_norm)] if evidence.final_post_norm else []
    return [
        f"parity: {label} differs from transformers by {found.relative_error:.2g} ({found.row_error:.2g} by row), "
        f"at most {limit:g}"
        for label, found in named
        if not found.is_within(limit)
    ]


def _as_json(found: Distance | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "relative_error": found.relative_error,
        "row_error": found.row_error,
        "worst_row_cosine": found.worst_row_cosine,
        "float32_error": found.float32_error,
        "reference_float32_error": found.reference_error,
    }


def _row(label: str, entry: dict[str, Any]) -> str:
    return (
        f"  {label:<34} {entry['relative_error']:>9.2g} {entry['row_error']:>9.2g} {entry['worst_row_cosine']:>13.6f} "
        f"{_number(entry['float32_error']):>11} {_number(entry['reference_float32_error']):>9}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else ("0 (equal bits)" if value == 0 else f"{value:.2g}")
