"""Where clients should connect, computed and measured: `mqttree bench placement`.

What it may know: `workloads`, runs of scenarios, and what makes tables. `grid` has the points of
the paper's figures, `averages` their means, `claims` and `page` what is made of them. `speed`
measures how fast clients are placed. `blocks` places many clients at once, by numpy, `rebalancing`
finds moves that pay. No broker runs in any of these.

`scaling_command` runs brokers; `scaling` says what M of them do beside one, with fits by
`least_squares`, and `scaling_page` is the page. `command` is the command line of all.

`changes` and `drift` compute what becomes of a placement; `controller_speed` and `takeover` measure
a federation on this machine, which `lab.loopback` starts.
"""
