"""Pictures as SVG documents: panels of lines, dots and bars, and heat maps."""
