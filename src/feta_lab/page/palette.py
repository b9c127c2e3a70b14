"""Colours and markers of series.

The hues are those of Okabe and Ito (https://jfly.uni-koeln.de/color/). They were moved a little until each has a
contrast of 3:1 with the page, light or dark, and every pair can be told apart with the three kinds of colour
blindness (the tests measure both). The marker repeats what the colour says.
"""

LIGHT = ("#065791", "#cf5c21", "#239a61", "#c069a4", "#13303a", "#d18300", "#2a9de4", "#5d5202", "#7d3fd1")
DARK = ("#2a85d9", "#f05c2e", "#1ab979", "#c56cab", "#b3c1c1", "#fdb418", "#9fd4ff", "#f8ec80", "#9a6bff")
MARKERS = "os^DvPXp>"
PAPER, SOFT = "#ffffff", "#59626f"

# On a page every colour of a figure becomes a variable of the stylesheet, which has a light and a dark value.
VARIABLES = {PAPER: "--page", "#1c2129": "--ink", SOFT: "--soft", "#e6e8ec": "--faint"}
VARIABLES |= {colour: f"--c{number}" for number, colour in enumerate(LIGHT)}


def look(slot: int) -> tuple[str, str]:
    """Colour and marker of the series with this number; the first 81 pairs differ."""
    # Each round of colours moves the markers by one, so that no pair comes twice.
    return LIGHT[slot % len(LIGHT)], MARKERS[(slot + slot // len(LIGHT)) % len(MARKERS)]
