"""Figures of results, as SVG: a function of rows and a width in each module."""
