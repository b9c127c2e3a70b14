"""The only room that walks a model."""
