"""Shared subscriptions over the whole federation."""
