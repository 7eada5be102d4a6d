"""Runs scenarios: one process a run, its clients, its faults, and what is noted of them."""
