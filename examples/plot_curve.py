"""Draw the loss and acceptance that ``train_drafter.py --curve`` wrote, as one SVG.

python examples/plot_curve.py curve.jsonl docs/img/training.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP = 360, 220, 48, 30
COLOURS = ("#1b6ca8", "#d1495b", "#5a9367", "#8d6a9f", "#c98a1b")


def panel(x: int, title: str, steps: Sequence[float], series: dict[str, list[float]], top: float) -> list[str]:
    """Axes, lines and their names, ``x`` pixels from the left; values run from 0 to ``top``."""
    right, bottom = x + LEFT + WIDTH, TOP + HEIGHT
    parts = [f'<text x="{x + LEFT}" y="{TOP - 10}" font-weight="bold">{title}</text>']
    for tick in range(5):
        y, value = bottom - HEIGHT * tick / 4, top * tick / 4
        parts.append(f'<line x1="{x + LEFT}" x2="{right}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{x + LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.2g}</text>')
    for step in (0, steps[-1] // 2, steps[-1]):
        place = x + LEFT + WIDTH * step / steps[-1]
        parts.append(f'<text x="{place}" y="{bottom + 16}" text-anchor="middle">{step:.0f}</text>')
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{x + LEFT + WIDTH * step / steps[-1]:.1f},{bottom - HEIGHT * min(value, top) / top:.1f}"
            for step, value in zip(steps, values, strict=True)
            if value == value
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{x + LEFT + 8}" y="{TOP + 14 + 15 * number}" fill="{colour}">{name}</text>')
    return parts


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    rows = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    steps = [row["step"] for row in rows]
    losses = {"training loss": [row["loss"] for row in rows]}
    rates = {f"draft {k + 1}": [row["accepted"][k] for row in rows] for k in range(len(rows[0]["accepted"]))}
    rates["drafts accepted a round"] = [row["accepted_length"] for row in rows]
    loss_top = max(value for value in losses["training loss"] if value == value)
    rate_top = max(0.1, *(value for values in rates.values() for value in values)) * 1.1
    parts = panel(0, "loss, by step", steps, losses, loss_top)
    parts += panel(WIDTH + LEFT + 30, "acceptance on held-out, by step", steps, rates, rate_top)
    size = f'width="{2 * (WIDTH + LEFT) + 60}" height="{TOP + HEIGHT + 30}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    target.write_text(
        "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""]), "utf-8"
    )


if __name__ == "__main__":
    main()
