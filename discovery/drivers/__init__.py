"""What carries announcements: UDP multicast, names of seeds. They move bytes and decide nothing.

`multicast` sends and hears announcements, `dns` resolves names of seeds again and again.
"""
