"""What survives a restart: the journal, its records, its snapshot, recovery, the tail of the replay
log."""
