"""Who wants which topics, who publishes them, and at which of M brokers each of them is.

What it may know: `model`. `workload` draws who wants which topics, and `workload_file` reads
it; `simulator` places it; `tree_network` is placement and traffic where brokers are linked as a
tree, and `trees` says what they carry then; `named` has those that scenarios call by name. All of
it is pure but `named`, which reads files.
"""
