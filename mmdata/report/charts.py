"""Small charts as inline SVG: horizontal bars, vertical bars, a curve. No script, no font, nothing from outside.

Every text goes through `html.escape`; numbers are formatted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

BAR_HEIGHT = 22
LABEL_WIDTH = 260
PLOT_WIDTH = 420


def horizontal_bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Bars with a label on the left and a text at their end. rows: (label, value, text), values at least 0."""
    if not rows:
        return "<p>none</p>"
    most = max(value for _, value, _ in rows) or 1.0
    height = BAR_HEIGHT * len(rows)
    parts = [f'<svg class="chart" viewBox="0 0 {LABEL_WIDTH + PLOT_WIDTH + 120} {height}" role="img">']
    for number, (label, value, text) in enumerate(rows):
        y = number * BAR_HEIGHT
        width = PLOT_WIDTH * value / most
        parts.append(
            f'<text x="{LABEL_WIDTH - 8}" y="{y + 15}" text-anchor="end">{escape(shortened(label))}</text>'
            f'<rect x="{LABEL_WIDTH}" y="{y + 3}" width="{max(width, 1):.1f}" height="{BAR_HEIGHT - 6}"/>'
            f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{y + 15}">{escape(text)}</text>'
        )
    return "".join(parts) + "</svg>"


def vertical_bars(rows: Sequence[tuple[str, float]], axis: str) -> str:
    """Bars side by side with a label below each; the value is the bar's tooltip. axis: what the labels are."""
    if not rows:
        return "<p>none</p>"
    most = max(value for _, value in rows) or 1.0
    step = min(60.0, 680 / len(rows))
    parts = ['<svg class="chart" viewBox="0 0 720 230" role="img">']
    for number, (label, value) in enumerate(rows):
        x, height = 20 + number * step, 150 * value / most
        parts.append(
            f'<rect x="{x:.1f}" y="{170 - height:.1f}" width="{step - 4:.1f}" height="{max(height, 0.5):.1f}">'
            f"<title>{escape(label)}: {value:,.0f}</title></rect>"
            f'<text class="small" transform="translate({x + step / 2:.1f},182) rotate(35)">{escape(label)}</text>'
        )
    parts.append(f'<text class="small" x="700" y="225" text-anchor="end">{escape(axis)}</text>')
    return "".join(parts) + "</svg>"


def curve(points: Sequence[tuple[float, float]], x_name: str, y_name: str, mark: float | None = None) -> str:
    """A line through points of the unit square. mark: an x drawn as a dashed line, such as the threshold."""
    if not points:
        return "<p>none</p>"
    path = " ".join(f"{40 + 400 * x:.1f},{210 - 190 * y:.1f}" for x, y in points)
    ticks = "".join(
        f'<text class="small" x="{40 + 400 * t:.0f}" y="226" text-anchor="middle">{t:g}</text>'
        f'<text class="small" x="34" y="{214 - 190 * t:.0f}" text-anchor="end">{t:g}</text>'
        for t in (0, 0.2, 0.4, 0.6, 0.8, 1)
    )
    dashed = "" if mark is None else (
        f'<line class="mark" x1="{40 + 400 * mark:.1f}" y1="20" x2="{40 + 400 * mark:.1f}" y2="210"/>'
    )
    return (
        f'<svg class="chart" viewBox="0 0 520 250" role="img"><rect class="frame" x="40" y="20" width="400" '
        f'height="190"/>{ticks}{dashed}<polyline points="{path}"/>'
        f'<text class="small" x="240" y="244" text-anchor="middle">{escape(x_name)}</text>'
        f'<text class="small" x="44" y="14">{escape(y_name)}</text></svg>'
    )


def shortened(text: str, most: int = 36) -> str:
    """The end of a long label, which tells paths apart better than the beginning."""
    return text if len(text) <= most else "…" + text[1 - most :]
