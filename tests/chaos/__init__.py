"""Real brokers, a hundred clients and twenty faults in five minutes: `python -m tests.chaos` (`make
chaos`). Faults of one kind alone: `--kinds split`; `--help` has all kinds and options."""
