"""MQTT 3.1, 3.1.1 and 5 packets to bytes and back: pure, strict, of use on its own.

``decode_packet`` and ``encode_packet`` work on whole packets, ``PacketReader`` cuts a stream into
them. Everything that is wrong with received bytes is a ``WireError`` with the Reason Code to
answer.

* `reader` cuts a stream into packets, `decode` and `encode` turn them into objects and back,
  `publish_header` reads PUBLISH and acknowledgements where they stand.
* `properties`, `strings` and `varint` are their parts; `constants` has the numbers of the
  specification, `errors` what is raised, `steps` work that is done in pieces.
"""
