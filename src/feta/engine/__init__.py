"""The engine: the only room that walks a model; `prune` is the call that users make."""
