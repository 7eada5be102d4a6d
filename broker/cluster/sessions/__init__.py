"""One session for a client id in the whole federation: takeover, handover, merge."""
