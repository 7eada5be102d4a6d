"""`mqttree bench report DIR`: one HTML page about the runs below a folder.

What it may know: the tables that `mqttree.bench.spark` wrote, and the scenarios. `data` reads the
tables, `figures` makes diagrams of the cases in the papers' form (`plot` draws them as SVG),
`papers` has what the papers report, `repeated` compares two sets of runs, `page` puts all on one
page.

`command` is the command line; `derived` and `distributions` compute measures, `judge` says whether
`statements` of papers hold, `shown` is what their figures show, `chapters` has the words of the
page.
"""

from mqttree.bench.report.command import add_arguments, main

__all__ = ["add_arguments", "main"]
