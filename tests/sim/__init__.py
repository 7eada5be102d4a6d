"""Brokers, clients and a network on a virtual clock: what each kind of schedule draws.

| dimension | plain (schedule.py) | strained (strains.py) | beside these: test_*.py |
|---|---|---|---|
| rate | tens of messages a second, bursts up to 60 | 20,000 to 60,000/s in half of them | feeds |
| holds beyond 10,000 | - | all that is published while a subscriber's broker hangs | feeds |
| waiting beyond 10,000 | - | a client that is away, or reads nothing; every drop counted | |
| sizes | up to 60 kB | 1 to 50 MB, up to 100 MB in all | slow_links |
| slow links | all links of the network alike | 20, 40, 100 Mbit/s of one link | slow_links |
| late joiners | brokers that start late | one joins amid the load, with subscribers | retained |
| roaming clients | some move once | 40 %; what they are owed counts | sessions, moving |
| shared groups | a third | half; with journals everywhere each message has a receiver | shared |
| restarts | without data | with journals at none, some, all brokers | durability |
| two incarnations | one broker after the other | two brokers at once, one twice | incarnations |
| brokers | 2 to 9 | 3, 5, 7 | |
| shape | some pairs never reach each other | mesh, line, ring | |
| routing | all modes, mixed | all modes, mixed | |
| drains | SIGTERM | `mqttree drain` under load | drain |
| limits | links' queues small in a quarter | as shipped | |

Federations with legs to foreign brokers are in legs.py, with `--kind legs`; in two of five of
these several legs lead to one broker (leg_rings.py): rings, chains of honest bridges, and two
gateways of one name.

`python -m tests.sim` draws the kind from the seed: three of four are plain. Nothing is excused but
what README says: order after a split of five seconds, what brokers published before they met, what
waits beyond 10,000 messages or 64 MiB for who is away, and what a broker without a journal alone
had acknowledged.
"""
