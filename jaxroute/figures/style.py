"""How every figure looks: sizes for print, colours that all readers tell apart, and clean SVG.

Sizes and fonts follow Nature's figure guide (https://research-figure-guide.nature.com): 89 mm for
one column, 183 mm for two, Arial or Helvetica of 5 to 7 pt, text kept as text.
"""

import contextlib
import html
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Point = tuple[float, float]

SINGLE_MM, DOUBLE_MM = 89.0, 183.0
"""Width of one column and of two."""

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
"""Eight colours that colour-blind readers tell apart: Okabe and Ito, in Wong, Nature Methods 8, 441
(2011)."""

GREY, PALE = "#767676", "#D9D9D9"

SERIES = (
    (VERMILION, "o", "-"),
    (BLUE, "s", (0, (4, 1))),
    (GREEN, "^", (0, (1, 1))),
    (PURPLE, "D", (0, (4, 1, 1, 1))),
    (ORANGE, "v", (0, (6, 2))),
    (SKY, "P", (0, (2, 2))),
)
"""Colour, marker and dashes of lines, in order: any one of the three tells them apart."""

SHADES = "Blues"
"""Of amounts: from light to dark, so that grey keeps the order."""

SIGNED = "PuOr"
"""Of savings: orange for carbon that a policy costs, purple for what it saves."""

FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
"""What the SVG asks for; laid out by DejaVu Sans, which matplotlib brings along and is wider."""

LETTER_MM, HANDLE_MM = 1.2, 10.0
"""Of a key: the mean width of a letter, and what an entry has beside its text."""

KEY_MM = 10.0
"""Height left for a key, or a scale of colours, below all panels."""

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 6.5,
    "axes.titlesize": 7,
    "axes.titlelocation": "left",
    "axes.labelsize": 6.5,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "legend.fontsize": 6,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "axes.linewidth": 0.5,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "grid.linewidth": 0.4,
    "grid.color": "#E4E4E4",
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "xtick.minor.width": 0.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
    "hatch.linewidth": 0.5,
    "patch.linewidth": 0.4,
    "svg.fonttype": "none",
    "text.parse_math": False,
}


@contextlib.contextmanager
def styled(salt: str = "jaxroute") -> Iterator[None]:
    """Within it figures look alike, whatever the user's settings; ids in SVG depend on `salt`.

    Names come from files: a glyph that the font lacks is no fault, as the SVG keeps the text.
    """
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC | {"svg.hashsalt": salt})
        yield


def panels(
    count: int, width_mm: float, height_mm: float, *, most: int = 3, **share: Any
) -> tuple["Figure", list["Axes"]]:
    """A figure of so many panels: beside each other in two columns' width, else one below another.

    Args:
      count: of panels.
      width_mm: of the figure.
      height_mm: of each panel, with what stands around it.
      most: panels beside each other in `DOUBLE_MM`.
      share: as `Figure.subplots` takes it.
    """
    from matplotlib.figure import Figure

    columns = min(count, most) if width_mm > SINGLE_MM else 1
    rows = -(-count // columns)
    size = width_mm / 25.4, (rows * height_mm + KEY_MM) / 25.4
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **share).ravel()
    for unused in axes[count:]:
        unused.set_axis_off()
    for panel in axes[:count]:
        panel.tick_params(axis="x", labelbottom=True)  # shared axes: numbers where a title is
    return figure, list(axes[:count])


def legend_below(figure: "Figure", axes: Iterable["Axes"]) -> None:
    """The key of panels below all of them, each entry once, in as many columns as there is room."""
    found: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        longest_mm = LETTER_MM * max(map(len, found)) + HANDLE_MM
        columns = max(1, int(25.4 * figure.get_figwidth() / longest_mm))
        figure.legend(
            found.values(), found.keys(), loc="outside lower center", ncols=min(columns, len(found))
        )


def bars_mm(count: int) -> float:
    """Height of a panel with so many bars one below another."""
    return max(28.0, 14 + 3.4 * count)


def beside(panel: "Axes", end: float, row: float, text: str) -> None:
    """Writes text to the right of a bar."""
    panel.annotate(text, (end, row), (2, 0), textcoords="offset points", va="center", fontsize=5.5)


OFFSETS_PT = [
    (side * out, up)
    for out in (2.0, 5.0, 8.0)
    for up in (2.0, -7.0, -2.5, 6.5, -11.5, 11.0)
    for side in (1, -1)
]
"""Where a label may stand, from its point to its nearer lower corner; the first is best."""

LETTER_PT, LINE_PT = 3.4, 5.0
"""Of a label's digit and height."""


def apart(
    points_pt: Sequence[Point], texts: Sequence[str], others_pt: Sequence[Point]
) -> list[Point]:
    """Offsets of labels from their points so that they lie off each other and off all points.

    Args:
      points_pt: of each label, in points of print.
      texts: the labels, a letter or a few.
      others_pt: points without a label.

    Returns:
      Where the lower left corner of each label stands, from its point; the first of `OFFSETS_PT`
      that is free, or the one that covers least.
    """
    taken = [(x - 1.5, y - 1.5, x + 1.5, y + 1.5) for x, y in (*points_pt, *others_pt)]
    found = []
    for (x, y), text in zip(points_pt, texts, strict=True):
        wide = LETTER_PT * len(text)
        corners = [(dx if dx > 0 else dx - wide, dy) for dx, dy in OFFSETS_PT]
        boxes = [(x + dx, y + dy, x + dx + wide, y + dy + LINE_PT) for dx, dy in corners]
        covered = [sum(_overlap(box, other) for other in taken) for box in boxes]
        best = int(np.argmin(covered))
        taken.append(boxes[best])
        found.append(corners[best])
    return found


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Area that two boxes (left, bottom, right, top) share."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)


def thousands(axis: "Axis") -> None:
    """Numbers of an axis with commas, and no more of them than there is room for."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(4))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def short(name: object, most: int = 28) -> str:
    """A name from a file, cut in the middle to what a figure has room for.

    >>> short("a_rather_long_name_7", 10)
    'a_rath…e_7'
    """
    text, tail = str(name), most // 3
    return text if len(text) <= most else f"{text[: most - tail - 1]}…{text[-tail:]}"


def ink(colour: Any) -> str:
    """Black or white, whichever is read better on a colour (WCAG 2.1's relative luminance)."""
    from matplotlib.colors import to_rgb

    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.03928, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return "black" if linear @ [0.2126, 0.7152, 0.0722] > 0.179 else "white"


_TAG = re.compile(r"<[^<>]*>")
_GEOMETRY = re.compile(r' (?:d|x|y|width|height|transform|points)="[^"]*"')
_LONG = re.compile(r"(\d\.\d{3})\d+")
_SPARE = re.compile(
    r"(?<=<g) id=\"[^\"]*\"| transform=\"rotate\(-?0 [^\"]*\"|font-family: [^;\"]*; ?"
)
_ID = re.compile(r' id="|url\(#|href="#')


def svg(draw: Callable[[], "Figure"], name: str, title: str, caption: str) -> str:
    """A figure as an `<svg>` element, the same at every run.

    Its ids begin with the name, so that many fit into one page; it is labelled for screen readers.

    Args:
      draw: makes the figure.
      name: of letters, digits, hyphens and underscores.
      title, caption: what it shows, in words.
    """
    out = io.StringIO()
    with styled(name):
        draw().savefig(out, format="svg", metadata={"Date": None, "Creator": None}, dpi=300)
    text = out.getvalue()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<style .*?</style>", "", text, count=1, flags=re.DOTALL)
    text = _TAG.sub(lambda found: _tidy(found[0], name), re.sub(r"\n +", "\n", text))
    told = f"<title>{html.escape(title)}</title><desc>{html.escape(caption)}</desc>"
    looks = f"font-family: {FONTS}; stroke-linejoin: round; stroke-linecap: butt"
    root, rest = text.split(">", 1)
    return f'{root} id="{name}" role="img" style="{looks}">{told}{rest}'


def _tidy(tag: str, name: str) -> str:
    """A tag with short numbers, with no ids but those referred to, and these of the name's own."""
    tag = _GEOMETRY.sub(lambda found: _LONG.sub(r"\1", found[0]), _SPARE.sub("", tag))
    tag = _ID.sub(lambda found: f"{found[0]}{name}-", tag)
    return re.sub(r"'DejaVu Sans'(, sans-serif)?", FONTS, tag)
