"""Who wants which topics, who publishes them, and at which of M brokers each of them is.

What it may know: `placement`. `workload` draws who wants which topics, and `workload_file` reads
it; `simulator` places it; `trees` says what brokers carry where messages follow a tree; `named`
has those that scenarios call by name. All of it is pure but `named`, which reads files.
"""
