"""One broker for its own clients, pure: connections, sessions, subscriptions, retained messages."""
