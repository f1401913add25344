"""Figures, and the HTML page of a report."""
