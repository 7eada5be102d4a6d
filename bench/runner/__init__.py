"""Runs scenarios and notes what happens: `mqttree bench run`.

What it may know: `scenarios` and all below. `arguments` are those of the command, `run` carries out
cells one after the other; `one_run` is one of them, in a process of its own: lab up, clients
(`crowd`, `clients`), load, faults (`fault_injector`), lab down. `book` counts losses, duplicates
and order while a run lasts, `observer` watches the brokers. All goes as a trace into the folder of
the run (`run_folder`), from which `mqttree.bench.spark` makes tables. `shell` is `mqttree bench
lab`, a network to play with.

`traffic` compares what brokers carried with what the model of placement expects.
"""
