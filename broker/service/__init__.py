"""One broker of its options, whoever starts it: the composition root.

What it may know: everything below it. `assembly` reads the configuration, locks the data directory
and makes the broker, `mqttree.broker.io.broker_service.BrokerService`; only if the configuration
has plugins, or other keys of amqtt, `mqttree.broker.compat` is imported, and its `broker.Broker`
made. `start_report` logs what runs.
"""
