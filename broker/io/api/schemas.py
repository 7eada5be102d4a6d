"""What answers of `/api/v1` look like. Each line has a key, its type and what it means; `?`: may be
null; `[T]`: a list of T; `{T}`: an object whose values are T; a capital: another schema."""

from __future__ import annotations

from typing import Any, Final

SCHEMAS: Final[dict[str, str]] = {
    "Document": """
openapi string: version of OpenAPI
paths object: all routes
""",
    "Error": """
error string: what is wrong, in one line
""",
    "Done": """
done boolean: always true; of status 202: it has begun
""",
    "Federation": """
id string: 16 hexadecimal digits
name string: of this broker
version string: of the program
cluster string: its name
root string: id of the root of the spanning tree
state string: discovery, otc or runtime
routing string: flood, interest or topic
links [object]: of this broker; docs/reference/http.md has their keys
members [object]: brokers that this one knows
gone [object]: brokers that are gone, with the keys of an Alarm
redirection object: clients that are sent to other brokers, and how that went
counters {integer}: as in /metrics, without mqttree_ and _total
ready boolean: whether clients should come
""",
    "Summary": """
time number: s since the epoch
uptime_s number: since the start of this broker
published_per_s number: messages that clients publish here
delivered_per_s number: messages that clients get here
link_in_per_s number: messages from other brokers
link_out_per_s number: messages to other brokers
bytes_in_per_s number: bytes from clients
bytes_out_per_s number: bytes to clients
dropped_per_s number: messages that were dropped, for whatever reason
cpu number: share of one processor core
clients integer: connected here
sessions integer: here, connected or not
subscriptions integer: ordinary ones, here
retained integer: retained messages
queued_bytes integer: memory of what is queued for sessions and links
memory_bytes integer: memory that counts for memory_limit
memory_limit_bytes integer: 0 without one
links_up integer: links of this broker that are up
brokers integer: brokers that can be reached, this one included
alarms integer: how many there are
""",
    "Broker": """
id string: 16 hexadecimal digits
name string: as it announces itself
address string: HOST:PORT, empty if it is not known
here boolean: whether this is the broker that answers
root boolean: whether it is the root of the spanning tree
reachable boolean: whether a path leads to it; if not: no rates, all else as last known
alive boolean: whether it was heard lately
draining boolean: whether it sends its clients away
standbys [string]: ids of the brokers that have its journal, too
via string?: id of the neighbour on the path to it
routing string?: how it routes
capability number?: the highest one becomes the root
published_per_s number?: messages that its clients publish
delivered_per_s number?: messages that its clients get
link_in_per_s number?: messages that come to it from other brokers
link_out_per_s number?: messages that it sends to other brokers
clients integer?: connected there
sessions integer?: there, connected or not
""",
    "Brokers": """
brokers [Broker]: by name
""",
    "Link": """
a string: id of one end
b string: id of the other end
up boolean: whether both ends agreed on it, as far as known here
tree boolean: whether it is part of the spanning tree
here boolean: whether it is a link of the broker that answers
cost_ms number?: what a path over it costs, as its ends have posted
rtt_ms number?: the round-trip time, of links here
role string?: root, designated or blocked, of links here
carries boolean?: whether messages take it, of links here
out_per_s number?: messages that this broker sends over it, of links here
in_per_s number?: messages that come over it, of links here
out_bytes_per_s number?: bytes sent, of all packets, as the system counts them, of links here
in_bytes_per_s number?: bytes received, likewise
""",
    "Links": """
links [Link]: by their ends
""",
    "Topology": """
cluster string: its name
here string: id of the broker that answers
root string: id of the root
epoch integer: grows with each change of the tree
brokers [Broker]: by name
links [Link]: by their ends
""",
    "DeliveryTree": """
origin string: id of the broker where messages are published
topic string: of the messages, empty: of any
kind string: source (the shortest paths of this origin) or spanning (the tree of all)
receivers [string]: ids of the brokers that want them
links [[string]]: the ends of each link that they take, the one nearer to the origin first
""",
    "Alarm": """
level string: error or warning
text string: one line
id string?: of the broker that is gone; DELETE dismisses this alarm
name string?: of that broker
since number?: when it went, s since the epoch
seen_by [string]: names of the brokers that lost a link to it
ended string?: crash (closed without a goodbye), silence or cut off (no broker here had a link)
""",
    "Alarms": """
alarms [Alarm]: errors first
""",
    "PastAlarms": """
alarms [PastAlarm]: 200 at most, the last one to end at the end
""",
    "PastAlarm": """
level string: error or warning
text string: one line, as it was last
since number: s since the epoch
until number: s since the epoch
""",
    "History": """
interval_s number: between two rows
columns [string]: names, as in Summary
rows [[number]]: the oldest first, an hour at most
""",
    "Change": """
time number: s since the epoch
text [string]: what changed, a line each
root string: id of the root since then
brokers [string]: ids of the brokers that could be reached
links [[string]]: the ends of each link of the tree
""",
    "Changes": """
changes [Change]: the oldest first, 200 at most
""",
    "Client": """
id string: client identifier
broker string: id of the broker that has its session
here boolean: whether that is the broker that answers
stale boolean: whether its broker does not answer: the rest is as it was last known, if at all
connected boolean?: whether it is connected
user string?: user name
address string?: HOST:PORT of the client
listener string?: where it came in
mqtt string?: 3.1, 3.1.1 or 5
keep_alive_s number?: what it asked for
clean_start boolean?: whether its session ends with its connection
expiry_s number?: for which its session outlives its connection, -1: for ever
subscriptions integer?: how many
queued integer?: messages that wait for it
queued_bytes integer?: payload of these
in_flight integer?: messages that it has not acknowledged
dropped integer?: messages that it did not get, as its queue was full or they were too large
""",
    "ClientPage": """
clients [Client]: by client identifier
total integer: how many match, at all brokers
silent [string]: ids of the brokers that did not answer, whose rows are stale
names {string}: their names by id, as far as known
next string?: `after` of the next page, null on the last one
""",
    "Subscription": """
client string: client identifier
filter string: topic filter
qos integer: that was granted
no_local boolean: whether the client does not get its own messages
retain_as_published boolean: whether RETAIN is passed on
identifier integer: Subscription Identifier, 0: none
""",
    "SubscriptionPage": """
subscriptions [Subscription]: by client and filter
total integer: how many match
next string?: `after` of the next page, null on the last one
""",
    "Group": """
filter string: with $share and the name of the group
members integer: members here
connected integer: those of them that are connected
""",
    "GroupPage": """
groups [Group]: by filter
total integer: how many match
next string?: `after` of the next page, null on the last one
""",
    "Topic": """
topic string: its name
per_s number: messages a second, an average whose half-life is a minute
receivers integer: clients of this broker that get them
""",
    "TopicPage": """
topics [Topic]: the highest rate first
total integer: how many match, of the 1,000 with the highest rates
others integer: how many more topics there are
others_per_s number: messages a second to these
""",
    "Retained": """
topic string: its name
qos integer: of the message
bytes integer: of the payload
expires_s number?: until it expires
""",
    "RetainedPage": """
retained [Retained]: by topic
total integer: how many match
next string?: `after` of the next page, null on the last one
""",
    "RetainedMessage": """
topic string: its name
qos integer: of the message
bytes integer: of the payload
expires_s number?: until it expires
text string?: the payload if it is UTF-8, its first 65,536 bytes
base64 string?: else, the same
whole boolean: whether that is all of it
""",
    "Route": """
filter string: topic filter
broker string: id of the broker that wants its messages
via string?: id of the neighbour through which they go, null: none leads there
""",
    "RoutePage": """
routes [Route]: by filter and broker
total integer: how many match
next string?: `after` of the next page, null on the last one
""",
    "Each": """
brokers [object]: the answer of each broker, with its id (broker) and its status
""",
    "Listener": """
name string: of the listener
type string: tcp or ws
tls boolean: whether connections speak TLS
address string: HOST:PORT, or the path of a Unix socket
connections integer: how many it has
max_connections integer: how many it takes at a time, 0: any number
waiting integer: connections that wait for a place
""",
    "Listeners": """
listeners [Listener]: by name
""",
    "Legs": """
legs [object]: docs/reference/http.md has their keys
""",
    "Leg": """
name string: of the leg; docs/reference/http.md has all keys
state string: up when messages cross
""",
    "Traffic": """
topics [array]: topic, messages a second that clients publish to it here, receivers among them
in number: messages a second from clients
out number: messages a second to clients; docs/reference/http.md has all keys
""",
    "Placement": """
controller string: id of the broker that decides
brokers [object]: with id, address, capacity, drained and their messages a second
clients integer: that were told where to connect
redirected integer: clients that were sent to other brokers in the last ten minutes
topics integer: whose rates are known
""",
    "Placed": """
ttl_s number: for which the answer is valid; docs/reference/http.md has all keys
sessions [object]: the connections
""",
    "Plan": """
applied boolean: whether the clients are told when they ask again
moves [object]: those that save most first
""",
    "Forgotten": """
forgotten string: client identifier
""",
    "Draining": """
draining boolean: always true
drain object: how far it is
""",
    "Events": """
event string: summary (once a second), topology (when it changes, and every five seconds), change
data string: Summary, Topology or Change, as JSON
""",
}


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of that name."""
    properties: dict[str, Any] = {}
    for line in SCHEMAS[name].strip().splitlines():
        head, _, text = line.partition(": ")
        key, kind = head.split(" ")
        properties[key] = {"description": text, **type_of(kind)}
    return {"type": "object", "required": list(properties), "properties": properties}


def type_of(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a type, as a line of a schema has it."""
    if kind.endswith("?"):
        found = type_of(kind[:-1])
        return {**found, "type": [found["type"], "null"]}
    if kind.startswith("["):
        return {"type": "array", "items": type_of(kind[1:-1])}
    if kind.startswith("{"):
        return {"type": "object", "additionalProperties": type_of(kind[1:-1])}
    if kind[0].isupper():
        return {"$ref": f"#/components/schemas/{kind}"}
    return {"type": kind}
