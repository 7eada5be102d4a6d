"""`mqttree bench report DIR`: one HTML page about the runs below a folder."""

from bench.report.command import add_arguments, main

__all__ = ["add_arguments", "main"]
