"""What carries announcements: UDP multicast, names of seeds. They move bytes and decide nothing."""
