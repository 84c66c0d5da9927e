"""Charts as SVG: lines over a logarithmic axis, and groups of bars. Standard library only."""

import math
from typing import NamedTuple
from xml.sax.saxutils import escape

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#666666", "#a6761d", "#1b1b1b"]
WIDTH, HEIGHT = 860, 440
LEFT, RIGHT, TOP, BOTTOM = 74, 232, 62, 62


class Series(NamedTuple):
    """One line, or one bar of each group."""

    name: str
    points: list  # (x, y) of a line; y of each group (None: no bar)


class Mark(NamedTuple):
    """A horizontal line that means something."""

    value: float
    name: str


def size_name(count):
    """1048576 is 1M."""
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if count >= 1 << power:
            return f"{count / (1 << power):g}{unit}"
    return f"{count:g}"


def number_name(value):
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def linear_ticks(high):
    """Round numbers from 0 to at least `high`."""
    step = 10 ** math.floor(math.log10(high / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (factor * step) <= 6)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


def logarithmic_ticks(low, high):
    """Powers of ten, and what lies between where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [factor * 10 ** power for power in range(first, last + 1) for factor in steps]
    below = [tick for tick in ticks if tick <= low]
    above = [tick for tick in ticks if tick >= high]
    return [tick for tick in ticks if below[-1] <= tick <= above[0]]


class Canvas:
    """Elements of one picture, and its axes."""

    def __init__(self, title, subtitle, y_title):
        self.elements = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
        self.text(LEFT, 24, title, size=16, weight="bold")
        self.text(LEFT, 44, subtitle, size=11, colour="#555555")
        self.elements.append(f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
                             f'font-size="12" text-anchor="middle" fill="#333333">{escape(y_title)}</text>')

    def text(self, x, y, text, size=11, anchor="start", colour="#333333", weight="normal"):
        self.elements.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
                             f'font-weight="{weight}" fill="{colour}">{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, colour="#e2e2e2", dash=""):
        self.elements.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
                             f'stroke-dasharray="{dash}"/>')

    def y_axis(self, ticks, y_of):
        for tick in ticks:
            self.line(LEFT, y_of(tick), WIDTH - RIGHT, y_of(tick))
            self.text(LEFT - 8, y_of(tick) + 4, number_name(tick), anchor="end")

    def mark(self, mark, y_of):
        if mark:
            self.line(LEFT, y_of(mark.value), WIDTH - RIGHT + 12, y_of(mark.value), "#333333", "5 4")
            self.text(WIDTH - RIGHT + 16, y_of(mark.value) + 4, mark.name, size=10)

    def legend(self, names):
        for i, name in enumerate(names):
            y = TOP + 8 + 18 * i
            self.elements.append(f'<rect x="{WIDTH - RIGHT + 16}" y="{y - 9}" width="12" height="10" rx="2" '
                                 f'fill="{COLOURS[i % len(COLOURS)]}"/>')
            self.text(WIDTH - RIGHT + 34, y, name)

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
                f'height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif">\n' + "\n".join(self.elements) +
                "\n</svg>\n")


def line_chart(title, subtitle, y_title, series, *, logarithmic=False, mark=None):
    """Lines over sizes in bytes."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points] + ([mark.value] if mark else [])
    x_low, x_high = math.log2(min(xs)), math.log2(max(xs))
    ticks = logarithmic_ticks(min(ys), max(ys)) if logarithmic else linear_ticks(max(ys))
    scale = math.log10 if logarithmic else float
    low, high = scale(ticks[0]), scale(ticks[-1])
    bottom, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP

    def x_of(x):
        part = (math.log2(x) - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return LEFT + 14 + part * (WIDTH - LEFT - RIGHT - 28)

    def y_of(y):
        return bottom - (scale(y) - low) / ((high - low) or 1) * height

    canvas = Canvas(title, subtitle, y_title)
    canvas.y_axis(ticks, y_of)
    for x in sorted(set(xs)):
        canvas.text(x_of(x), bottom + 18, size_name(x), anchor="middle")
    canvas.text((LEFT + WIDTH - RIGHT) / 2, bottom + 42, "bytes", size=12, anchor="middle")
    canvas.mark(mark, y_of)
    for i, one in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in sorted(one.points))
        canvas.elements.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        canvas.elements += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>'
                            for x, y in one.points]
    canvas.legend([one.name for one in series])
    return canvas.svg()


def bar_chart(title, subtitle, y_title, groups, series, *, mark=None):
    """A group of bars for each name in `groups`."""
    values = [y for one in series for y in one.points if y is not None] + ([mark.value] if mark else [])
    ticks = linear_ticks(max(values))
    bottom = HEIGHT - 30 - 4 * max(len(group) for group in groups)  # room for their names
    height = bottom - TOP

    def y_of(y):
        return bottom - y / ticks[-1] * height

    canvas = Canvas(title, subtitle, y_title)
    canvas.y_axis(ticks, y_of)
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    width = room * 0.8 / len(series)
    for g, group in enumerate(groups):
        start = LEFT + g * room + room * 0.1
        for i, one in enumerate(series):
            if one.points[g] is None:
                continue
            x, y = start + i * width, y_of(one.points[g])
            canvas.elements.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width * 0.92:.1f}" '
                                   f'height="{bottom - y:.1f}" fill="{COLOURS[i % len(COLOURS)]}"/>')
            if len(groups) * len(series) <= 24:
                canvas.text(x + width / 2, y - 3, number_name(one.points[g]), size=9, anchor="middle")
        canvas.elements.append(f'<text transform="translate({start + room * 0.4:.1f} {bottom + 14}) rotate(-38)" '
                               f'font-size="10" text-anchor="end" fill="#333333">{escape(group)}</text>')
    canvas.mark(mark, y_of)
    canvas.legend([one.name for one in series])
    return canvas.svg()
