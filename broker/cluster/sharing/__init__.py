"""Shared subscriptions over the whole federation (docs/decisions/0015-shared.md).

A message for `$share/group/filter` goes to one member of the group, whichever broker has it. The
broker at which the message is published chooses, from what all brokers post of their groups; the
choice travels with the message, so that no other broker delivers it.

This package may use what delivers messages (`delivery`) and the `directory`, and of this broker
its dispatcher and its sessions (`core`). Sessions that move to other brokers are above it: it asks
for them by `LeavingSessions` (`mqttree.broker.cluster.ports`).

* `shared_subscriptions` puts the package together: who gets a message, here or elsewhere.
* `group_table` knows which groups have members, here and at other brokers.
* `assignments` is the giver's side: a message stays until the member's client has acknowledged it;
  `assignment_ledger` is its table, and how brokers name these messages.
* `custody` is the taker's side: what other brokers gave to members here.
* `deputies` knows who answers for a giver or a taker that is gone.
* `catchup` gives groups that become known late what was published for them meanwhile.
* `ports` is what these parts ask of `shared_subscriptions`.

States of one message that was given to another broker:

    giver   QoS 1  given -(DONE)-> closed
            QoS 2  OPEN -(CLAIM)-> GRANTED -(DONE)-> closed
            given back (DECLINE, DENY, UNKNOWN): RETURNED -> given to another member, or waiting
            its broker is gone: OPEN and QoS 1 go to another member, GRANTED stays with its client,
            or, if its broker's standby does not know of it, goes to another member
    taker   QoS 2  held -(a member has room)-> claimed -(GRANT)-> ready -(room)-> with the client
            -(acknowledged)-> reported; REFUSE drops it
            the giver cannot be reached, nor its standby: parked, `MEMBER_WAIT_S` at most
"""
