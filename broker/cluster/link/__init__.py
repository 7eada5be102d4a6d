"""A link to another broker: handshake, admission, records, the format of messages on it."""
