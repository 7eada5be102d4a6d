"""The broker: pure `Node` and the drivers around it."""
