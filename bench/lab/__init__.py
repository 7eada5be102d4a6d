"""Test networks: brokers as processes with a network between them that can be slow, lossy, cut, or
half-open."""
