"""Real brokers, a hundred clients and twenty faults in five minutes: `python -m tests.chaos` (`make
chaos`)."""
