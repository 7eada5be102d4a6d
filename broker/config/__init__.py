"""What a broker is told: files, flags, environment and defaults, read and checked."""
