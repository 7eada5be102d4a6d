"""All that knows amqtt: its Broker, plugins, views and configuration, answered by our node."""
