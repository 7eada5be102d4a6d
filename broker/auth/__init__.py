"""Who a client is and what it may do: users, rules, SCRAM, enhanced authentication."""
