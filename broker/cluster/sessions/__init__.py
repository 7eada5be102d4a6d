"""One session for a client id in the whole federation (docs/decisions/0016-sessions.md).

A client may connect to any broker. If its session is at another one, the broker to which it came
*takes it over*; the one that has it, its holder, *hands it over*. If a client began a new session
while its holder could not be reached, the older one is *merged* into the newer one later. Nothing
that was acknowledged is lost, and nothing at QoS 2 comes twice.

This package may use what delivers messages (`delivery`), the `directory`, shared
subscriptions and the sessions of this broker (`core`). What is above it is known to it by the
Protocols of `mqttree.broker.cluster.ports` alone.

* `posted_sessions` are those that brokers have announced to each other. When a client has one here
  and one elsewhere, `competing_sessions` decides which stays.
* `takeover` drives the broker that takes: CONNECT waits until the session is here. Its states are a
  table in `pending_takeover`. `session_restoration` makes the session here.
* `handover` drives the holder: it encodes a session, and keeps it until the taker has it. Its
  states are a table in `pending_handover`. `session_history` is what a taker has to know of a
  session, `messages_under_way` what it has to wait for.
* `merge` adds older sessions to newer ones. Its states are a table in `pending_merge`.
* `queue_merge` decides what of the queues of older sessions is added.
* `takeover_messages` has what two brokers say. `session_state` is a session without its connection,
  `session_head` is that as bytes, `session_parts` how these are sent in parts. With a
  session go the identifiers of QoS 2 messages that its client was publishing, so that a PUBLISH
  that is repeated at the taker counts once; its will stays.
* `evaluated` has what sessions had elsewhere and from older sessions, by name: the only record of
  it, whatever brings a message. `session_history` gives sessions what they lack from the log;
  `message_vectors` are the sets of numbers in which all of them count.
* `session_entries` reads what brokers post of their sessions, `tombstones` remembers sessions that
  have ended while brokers are away, `recently_elsewhere` which clients were elsewhere a moment ago.
* `image_states` is the table of an image that a standby has of another broker, `fence_messages`
  what it says when that one is back.
* `records` are what brokers record of sessions and messages, in journals and heads;
  `session_records` makes them of a session. `image` is what they add up to, `recorded_session` a
  session in that, `recorded_messages` the messages.

States, in short:

    takeover  ASKING -> READING -> OVER; another broker has it (MOVED): ASKING again; OVER from
              every state when the client leaves, the holder has no session, or has a newer one
    handover  HERE -(TAKE or MERGE)-> ENCODING -> ENCODED -(DONE)-> GIVEN, for some seconds; GIVEN
              also from every state before; HERE again when the client comes back or the taker stops
              asking
    merge     WANTED -> ASKING -> READING -> CLOSING -> OVER
"""
