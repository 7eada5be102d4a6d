"""What things cost: bytes of memory that objects take besides their text, and steps of work.

They are measured, or known from how the objects are built; nothing is bounded by them. A step is
about a microsecond (`mqttree.broker.base.turns`).
"""

from typing import Final

QUEUED_MEMORY: Final = 500
"""bytes of memory that a waiting message takes besides its payload and topic."""

FLIGHT_MEMORY: Final = 130
"""bytes of memory that a packet in flight takes besides its bytes."""

HELD_MEMORY: Final = 300
"""bytes of memory that a batch takes besides its packets that waits for what is missing before
it."""

LOG_ENTRY_MEMORY: Final = 200
"""bytes of memory that an entry of the replay log takes besides its packets."""

RETAINED_MEMORY: Final = 230
TOMBSTONE_MEMORY: Final = 150
"""bytes of memory that a retained message takes besides its payload and topic, and a deleted topic
that is remembered; both besides their versions."""

VERSION_MEMORY: Final = 95
LEAF_MEMORY: Final = 420
"""bytes of memory that the version of a retained topic takes besides its own bytes, and a leaf of
the table that they are in (`RetainedIndex`), of which there are 65,536 at most."""

SESSION_MEMORY: Final = 1_800
SUBSCRIPTION_MEMORY: Final = 210
CONNECTION_MEMORY: Final = 1_500
"""bytes of memory that each session, subscription and connection takes, besides names, filters and
what a client leaves here."""

FILTERS_MEMORY: Final = 8
"""bytes of memory for each byte of a SUBSCRIBE or UNSUBSCRIBE that waits for its turn."""

REF_MEMORY: Final = 600
START_MEMORY: Final = 100
"""bytes of memory that an open message of a shared subscription takes besides its packet, and each
origin in the position of a subscription."""

LEVEL_MEMORY: Final = 250
"""bytes of memory that a level of a filter with wildcards takes besides its word, at most: a node
that no other filter shares."""

IDENTIFIER_MEMORY: Final = 64
"""bytes of memory that a QoS 2 packet identifier takes that is not released."""

PROPERTY_MEMORY: Final = 130
"""bytes of memory that a User Property takes besides its text: on the wire it may have five
bytes."""

ROUTE_WORK: Final = 4
"""steps of work that it takes to find the route of a topic, besides those of the look-up among
filters."""

ROUTE_MEMORY: Final = 1_000
TOPIC_MEMORY: Final = 140
RECEIVER_MEMORY: Final = 250
ROUTE_SHOWN_MEMORY: Final = 150
"""bytes of memory that a kept route takes, each topic that has it, each receiver in it, and each
client that has a topic among its own, as rules are in force."""

RATE_MEMORY: Final = 190
"""bytes of memory that a topic takes whose rate is measured."""

GROUP_MEMORY: Final = 1_000
MEMBERS_MEMORY: Final = 300
"""bytes of memory that another broker's shared subscription takes besides its filter, and each
broker with members."""

PACKET_WORK: Final = 20
"""steps that a packet that no run takes, and a topic without a route, count besides what is
found."""

RETAINED_WORK: Final = 30
"""steps that a retained message counts besides: it is kept, stamped, hashed and goes to the
journal."""

FILTERS_DECODED: Final = 10
"""bytes of a SUBSCRIBE or UNSUBSCRIBE that are decoded in a step of work."""
