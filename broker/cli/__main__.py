"""`python -m mqttree.broker.cli`: the same as `mqttree`."""

from mqttree.broker.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
