"""What all of the broker uses: limits, counters, times, sets of numbers, keys. It knows of no
client and of no federation."""
