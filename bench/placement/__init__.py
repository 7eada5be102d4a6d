"""Where clients should connect, computed: `mqttree bench placement`. No broker runs.

What it may know: `placement`, and what makes tables. `workload` draws who wants which topics, and
`workload_file` reads it; `simulator` places it; `command` is the command line.
"""
