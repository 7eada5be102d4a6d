"""One broker as a member of a federation, pure: links, delivery, routing, sessions that move,
shared subscriptions."""
