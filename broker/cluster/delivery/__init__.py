"""Messages over links, each once and in order: forwarding, replay log, resync, gap recovery."""
