"""MQTT-ST: the spanning tree, pure."""
