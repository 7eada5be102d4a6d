"""Fuzzing: bytes are played as programmes against parts of the broker, see `targets`."""
