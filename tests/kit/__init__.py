"""What tests share: with real brokers, these as processes, their agreement, clients, a relay; of
state machines, the walk through a table. What the measuring tools need as well is in `bench`."""
