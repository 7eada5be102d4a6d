"""The drivers: sockets, files, threads and HTTP around the pure node. They move bytes and decide
nothing; what a driver must do, and in which order, is in docs/reference/driver-contract.md.

What it may know: the node and everything below it, asyncio, the operating system. Nothing below
knows it: the node asks for effects (`core.effects`) and is given bytes, answers and the time.

* `broker_service.BrokerService` is one broker in one event loop, joined of the others here.
* `driver.Driver` runs one node in one event loop. `loop_turns` has its turns: a flush in each, a
  tick at the node's deadline.
* `stream_protocol.StreamProtocol` is a connection by the loop's own transports (TLS, macOS).
* `epoll_transport` reads and writes plain TCP and Unix connections without the loop's transports. A
  connection is PARKED (no place yet), OPEN, CLOSING (the last bytes go out), LINGERING (closed for
  writing, incoming bytes are ignored) or GONE.
* `websocket`, `proxy_protocol`, `tls`, `listener`, `listeners`: what comes before MQTT on a
  connection.
* `discovery_driver`: announcements, names of seeds, dials.
* `journal_writer`, `tail_writer`: one thread each writes the journal and the log tail; small frames
  of the journal are written by the event loop.
* `auth_service`: users and rules as files, passwords checked in threads.
* `admin_http`, `http_request`, `readiness`, `prometheus`, `metric_help`: the admin port.
* `admin_access` says who may use that port; `api` is `/api/v1`, `dashboard` has its pages.
* `legs` runs all legs: `leg_driver` one of them, with `leg_connections`, `leg_retained` (retained
  messages of this broker), `leg_report` (its state), `leg_turns` (which gateway of a name is
  active), `leg_watch` (what nothing reports) and `leg_forget` (ends its session).
* `service_manager` talks to systemd, `freed_memory` tunes the allocator, `websocket_frames` finds
  frames in bytes.
"""
