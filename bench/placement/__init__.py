"""Where clients should connect, computed: `mqttree bench placement`. No broker runs.

What it may know: `placement`, and what makes tables. `workload` draws who wants which topics, and
`workload_file` reads it; `simulator` places it. `grid` has the points of the paper's figures,
`averages` their means, `claims` and `page` what is made of them. `speed` measures how fast clients
are placed. `command` is the command line.
"""
