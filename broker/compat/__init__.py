"""All that knows amqtt: its Broker, plugins, views and configuration, answered by our node.

What it may know: everything below it, and amqtt; no other package knows amqtt. It is imported only
for a configuration with plugins, or with other keys of amqtt, and by programs that use amqtt's
class: `broker` extends `mqttree.broker.io.broker_service.BrokerService` and amqtt's Broker. The
rest is for it: it is shown to amqtt's plugins as theirs (`plugins`, `views`, `hooks`, `api`), has
amqtt's listeners (`listener`) and amqtt's part of a configuration (`config`).

Private members of amqtt that are used, because there is no public one:

* `PluginManager._event_plugin_callbacks`: which plugins have a method for an event. Without it each
  packet of each client would be made an object for plugins that do not want it.
* `PluginManager._auth_plugins`, `_topic_plugins`: which of `plugins` are asked; with entry points
  the configuration chooses, so types do not say.
* `Broker._authenticate`, `_topic_filtering`: amqtt's rule how answers of several plugins add up.
* `Broker._servers`, `_sessions`, `_subscriptions`, `_retained_messages`: set by amqtt's
  constructor or read by its public properties (`sessions`, `subscriptions`, `retained_messages`),
  which plugins use; we put our views there.
* `Broker._start_listeners`, `_client_connected`, `_broadcast_message`, `_cleanup_session`,
  `_delete_session`: overridden, as amqtt and its plugins call them.
* `BrokerSysPlugin._stats`, `_current_process`: fed from our counters instead of from every packet.
* `BrokerContext._broker_instance`: the broker that a context of amqtt belongs to.

`tests/unit/compat/test_compat_private.py` fails when amqtt has another minor version: it may have
changed what is relied on here, which `tests/process/test_server_amqtt.py` shows.

`accounts` makes amqtt's `Session` objects, `ports` is what plugins ask of their broker, and
`start_report` logs what a broker that runs listens on and accepts.
"""
