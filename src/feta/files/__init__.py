"""Export: sparse files that are really smaller, and smaller models."""
