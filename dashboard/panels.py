"""The page's panels as HTML: pure functions of the numbers, every text from outside escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dashboard import wording
from dashboard.figures import FULL_SPOOL, Node, Numbers, Run, Stage
from dashboard.pipeline import stages

NOTHING_YET = (
    "<h2>What to do now</h2><p>This page fills as soon as a producer enqueues its first batch:</p>"
    "<p><code>eaglefeed produce conversations.jsonl --run run.toml</code></p>"
)


def how_far(run: Run) -> str:
    """Stored of unique, with a bar."""
    return (
        "<h2>How far</h2>"
        f'<p class="big">{run.percent:.1f}<span class="unit"> %</span></p>'
        f'<div class="bar" role="progressbar" aria-label="Samples stored" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{run.percent:.1f}"><div style="width:{run.percent:.1f}%"></div></div>'
        f"<p><b>{run.stored:,}</b> of {run.unique:,} unique samples stored</p>"
        f'<p class="muted">{run.counts.get("tokens", 0):,} tokens, {wording.size(run.counts.get("stored_bytes", 0))} '
        f"in shards, compression {wording.ratio(run)}</p>"
    )


def how_fast(run: Run) -> str:
    """Averages over three windows, a column each."""
    rows = [
        ("samples/s", *(wording.rate(window.samples) for window in run.rates)),
        ("tokens/s", *(wording.rate(window.tokens) for window in run.rates)),
        ("raw MB/s", *(wording.megabytes(window.raw_bytes) for window in run.rates)),
        ("stored MB/s", *(wording.megabytes(window.stored_bytes) for window in run.rates)),
    ]
    heads = ("average over", *(f"{window.window_minutes} min" for window in run.rates))
    return f"<h2>How fast</h2>{table(heads, rows, 'Averages', numeric_from=1)}"


def until_when(run: Run, clock: str) -> str:
    """The ETA, and the time of day it means in UTC."""
    detail = {
        "done": "every enqueued sample has its outcome",
        "empty": "nothing is enqueued",
        "paused": "paused: `eaglefeed run-state resume` lets it go on",
        "cancelled": "cancelled",
        "closed": "complete and closed",
        "dead": "only dead letters are left: retry or drop them",
    }.get(run.state, f"about {clock} UTC, at the rate of the last 5 minutes" if clock else "nothing moves now")
    return (
        "<h2>Until when</h2>"
        f'<p class="big">{escape(wording.eta(run))}</p><p>{escape(detail)}</p>'
        f'<p class="muted">{run.waiting_batches:,} of {run.counts.get("batches", 0):,} batches have no outcome yet</p>'
    )


def what_is_wrong(numbers: Numbers, run: Run) -> str:
    """Troubles as a list; rejected and dead by reason."""
    troubles = "".join(f"<li>{escape(trouble)}</li>" for trouble in find_troubles(numbers, run))
    body = f'<ul class="troubles">{troubles}</ul>' if troubles else '<p class="good">Nothing needs you.</p>'
    rejected, dead = run.counts.get("rejected", 0), run.counts.get("dead", 0)
    reasons = [("rejected", reason, f"{count:,}") for reason, count in run.reasons("rejected").items()]
    reasons += [("dead", reason, f"{count:,}") for reason, count in run.reasons("dead").items()]
    counts = (
        f"<p><b>{rejected:,}</b> rejected, <b>{dead:,}</b> dead samples, {run.counts.get('retried', 0):,} retried</p>"
    )
    listed = table(("", "reason", "samples"), reasons, "Rejected and dead samples by reason", numeric_from=2)
    return f"<h2>What is wrong</h2>{body}{counts}{listed if reasons else ''}"


def find_troubles(numbers: Numbers, run: Run) -> list[str]:
    """Sentences that name what an operator should look at, worst first."""
    found = []
    if run.state == "stalled":
        found.append(f"Nothing was stored for {wording.age(run.quiet_seconds)} although batches wait.")
    if numbers.dead:
        letters = "1 dead letter waits" if numbers.dead == 1 else f"{numbers.dead:,} dead letters wait"
        found.append(f"{letters} for a decision (see below).")
    for node in numbers.nodes:
        found += _node_troubles(node)
    known = {node.name for node in numbers.nodes if not node.is_stale}
    for queue in numbers.queues:
        node_name = queue.name.removeprefix("store.")
        if queue.name != "extract" and queue.waiting and node_name not in known:
            found.append(f"{queue.waiting:,} batches wait on the disk of node {node_name}, which does not report.")
    if not numbers.nodes and run.state not in ("done", "empty"):
        found.append("No node has reported: start an engine and its workers.")
    rejected = run.counts.get("rejected", 0)
    if rejected > 0.05 * max(1, run.stored + rejected):
        found.append(f"{100 * rejected / (run.stored + rejected):.0f} % of the samples are rejected.")
    return found


def _node_troubles(node: Node) -> list[str]:
    found = []
    if node.is_stale:
        found.append(f"Node {node.name} does not report (last seen {wording.age(node.updated_seconds)} ago).")
    elif node.engine_state in ("down", "paused"):
        found.append(f"Node {node.name} is {node.engine_state}: {node.message or 'no reason given'}.")
    if node.spool_fraction >= FULL_SPOOL:
        found.append(f"The spool of node {node.name} is {100 * node.spool_fraction:.0f} % full: storage is behind.")
    return found


def pipeline(numbers: Numbers, run: Run | None) -> str:
    """Six boxes from left to right; the narrow one is marked in words too, not by colour alone."""
    return '<h2 id="pipeline">Pipeline</h2><ol class="pipeline">' + "".join(map(_stage, stages(numbers, run))) + "</ol>"


def _stage(stage: Stage) -> str:
    mark = '<span class="mark">narrow</span>' if stage.is_narrow else ""
    label = "last" if stage.name == "Stored" else "oldest"
    age = (
        f'<span class="muted">{label} {wording.age(stage.age_seconds)}</span>' if stage.age_seconds is not None else ""
    )
    return (
        f'<li class="stage{" narrow" if stage.is_narrow else ""}"><h3>{stage.name}{mark}</h3>'
        f'<p class="depth">{escape(stage.depth)}</p><p>{escape(stage.detail)}</p>{age}</li>'
    )


def nodes(numbers: Numbers) -> str:
    """One row a node."""
    if not numbers.nodes:
        return "<h2>Nodes</h2><p>No node has reported yet.</p>"
    rows = [
        (
            f"<b>{escape(node.name)}</b>",
            escape(node.device),
            _engine_state(node),
            escape(node.engine_version),
            _spool(node),
            f"{wording.age(node.last_sample_seconds)} ago" if node.last_sample_seconds is not None else "—",
            escape(node.message),
        )
        for node in numbers.nodes
    ]
    heads = ("node", "device", "engine", "version", "spool", "last sample", "message")
    return f'<h2>Nodes</h2><div class="stacked">{table(heads, rows, "GPU nodes", escaped=True)}</div>'


def _engine_state(node: Node) -> str:
    if node.is_stale:
        return f'<span class="bad">stale</span> <span class="muted">{escape(node.engine_state)}</span>'
    kind = {"ready": "good", "down": "bad", "gone": "bad"}.get(node.engine_state, "warn")
    return f'<span class="{kind}">{escape(node.engine_state)}</span>'


def _spool(node: Node) -> str:
    if not node.spool_max_bytes:
        return wording.size(node.spool_bytes)
    percent = min(100.0, 100 * node.spool_fraction)
    return (
        f'<div class="bar small{" full" if node.spool_fraction >= FULL_SPOOL else ""}" role="meter" '
        f'aria-label="Spool of {escape(node.name, quote=True)}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{percent:.0f}"><div style="width:{percent:.0f}%"></div></div>'
        f"{percent:.0f} % of {wording.size(node.spool_max_bytes)}"
    )


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str, numeric_from: int = 99, escaped: bool = False
) -> str:
    """A data table with a caption for those who hear it; it scrolls in itself on a narrow screen."""

    def cell(place: int, text: str) -> str:
        kind = ' class="number"' if place >= numeric_from else ""
        return f'<td{kind} data-label="{escape(heads[place], quote=True)}">{text if escaped else escape(text)}</td>'

    head = "".join(
        f'<th scope="col"{" class=number" if place >= numeric_from else ""}>{escape(text)}</th>'
        for place, text in enumerate(heads)
    )
    body = "".join(f"<tr>{''.join(cell(place, text) for place, text in enumerate(row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}">'
        f'<table><caption class="hidden">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
