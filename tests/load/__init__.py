"""Promises under load: real brokers, thousands of messages a second, faults and slow links. `make
load` runs them."""
