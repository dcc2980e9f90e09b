"""The charts as ECharts options, and each one's content in a sentence for those who cannot see it."""

from __future__ import annotations

from typing import Any

from dashboard.figures import Numbers, Run

POINTS = 120
_BLUE, _ORANGE, _GREEN = "#2f7ed8", "#d9822b", "#2e9e5b"


def throughput(run: Run, now: float, minutes: int) -> dict[str, Any]:
    """Samples and tokens per second, a point a step; the open minute is left out."""
    times, step = _steps(now, minutes)

    def series(field: str) -> list[list[float]]:
        return [
            [
                1000 * 60 * at,
                round(sum(run.minutes.get(at + i, {}).get(field, 0) for i in range(step)) / (60 * step), 3),
            ]
            for at in times
        ]

    axes = [_axis("samples/s"), _axis("tokens/s", right=True)]
    lines = [_line("samples/s", series("stored"), _BLUE), _line("tokens/s", series("tokens"), _ORANGE, axis=1)]
    return _over_time(lines, axes)


def queue_depth(numbers: Numbers, minutes: int) -> dict[str, Any]:
    """Waiting batches in both kinds of queue."""
    lines = [
        _line("extract", _depths(numbers, "extract", minutes), _BLUE),
        _line("store", _depths(numbers, "store", minutes), _ORANGE),
    ]
    return _over_time(lines, [_axis("batches")])


def spool(numbers: Numbers, minutes: int) -> dict[str, Any]:
    """GiB in the spools of all nodes, and what they may hold."""
    used = [[at, value and round(value / 2**30, 3)] for at, value in _depths(numbers, "spool_bytes", minutes)]
    limit = [[at, value and round(value / 2**30, 3)] for at, value in _depths(numbers, "spool_max_bytes", minutes)]
    lines = [_line("in use", used, _GREEN, area=True), _line("limit", limit, _ORANGE, dashed=True)]
    return _over_time(lines, [_axis("GiB")])


def lengths(run: Run) -> dict[str, Any]:
    """Stored samples by length."""
    names = [f"≤ {upper:,}" for upper in run.lengths]
    bars = {"type": "bar", "name": "samples", "data": list(run.lengths.values()), "itemStyle": {"color": _BLUE}}
    return {
        **_common(),
        "xAxis": {"type": "category", "data": names, "name": "tokens", "nameLocation": "middle", "nameGap": 28},
        "yAxis": [_axis("samples")],
        "series": [bars],
    }


def throughput_sentence(run: Run) -> str:
    windows = ", ".join(f"{window.samples:.2f} over {window.window_minutes} minutes" for window in run.rates)
    return f"Throughput over time. Samples per second now: {windows}."


def queue_sentence(numbers: Numbers) -> str:
    return "Queue depth over time. Now: " + ", ".join(f"{q.name} {q.waiting}" for q in numbers.queues) + "."


def spool_sentence(numbers: Numbers) -> str:
    now = ", ".join(f"{node.name} {100 * node.spool_fraction:.0f} % full" for node in numbers.nodes) or "no node"
    return f"Spool over time. Now: {now}."


def lengths_sentence(run: Run) -> str:
    listed = ", ".join(f"up to {upper} tokens {count}" for upper, count in run.lengths.items()) or "none yet"
    return f"Stored samples by length: {listed}."


def _steps(now: float, minutes: int) -> tuple[range, int]:
    """Starts of the steps, in minutes, and the length of one, so that there are at most ``POINTS``."""
    step = max(1, -(-minutes // POINTS))
    last = int(now // 60) // step * step
    return range(last - minutes // step * step, last, step), step


def _depths(numbers: Numbers, field: str, minutes: int) -> list[list[Any]]:
    """Points of one depth; None (a gap) where no dashboard ran."""
    times, step = _steps(numbers.taken_at, minutes)
    found = []
    for at in times:
        sampled = [numbers.depths[at + i][field] for i in range(step) if field in numbers.depths.get(at + i, {})]
        found.append([1000 * 60 * at, max(sampled) if sampled else None])
    return found


def _line(
    name: str, data: list[list[Any]], color: str, axis: int = 0, area: bool = False, dashed: bool = False
) -> dict[str, Any]:
    return {
        "type": "line",
        "name": name,
        "data": data,
        "yAxisIndex": axis,
        "showSymbol": False,
        "color": color,
        "lineStyle": {"width": 2, "type": "dashed" if dashed else "solid"},
        **({"areaStyle": {"opacity": 0.2}} if area else {}),
    }


def _axis(name: str, right: bool = False) -> dict[str, Any]:
    return {
        "type": "value",
        "name": name,
        "min": 0,
        "minInterval": 0,
        "position": "right" if right else "left",
        "splitLine": {"show": not right, "lineStyle": {"opacity": 0.25}},
        "nameTextStyle": {"align": "right" if right else "left"},
    }


def _over_time(lines: list[dict[str, Any]], axes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **_common(),
        "legend": {"top": 0, "right": 60, "itemHeight": 8},
        "xAxis": {"type": "time", "splitNumber": 4, "axisLabel": {"hideOverlap": True}},
        "yAxis": axes,
        "series": lines,
    }


def _common() -> dict[str, Any]:
    return {
        "animation": False,
        "grid": {"left": 8, "right": 20, "top": 44, "bottom": 8, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True},
    }
