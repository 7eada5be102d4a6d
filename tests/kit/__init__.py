"""What tests with real brokers share: brokers as processes, their agreement, clients, a relay. What
the measuring tools need as well is in `bench`."""
