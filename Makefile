# Every target sets up what it needs (scripts/setup) and finds it there the second time.
#   make run [BROKERS=n]     a federation on loopback, ports 1883, 1884, ... with a live view; Ctrl-C stops all of it
#   make test [ARGS=...]     the tests of every change
#   make test-long           more examples and seeds, and what takes long
#   make compiled            compiles the core for this checkout (needs gcc); sources that change are not run compiled
#   make wheel               a wheel with a compiled core, in dist (needs gcc)
#   make interop             brokers, clients, browsers and shells of other makers (needs node and npm)
#   make check               ruff and its formatter, mypy, import-linter, the architecture
#   make sim SEEDS=n         n simulated schedules from seed FIRST
#   make fresh [SEEDS=n]     n simulated schedules and drawn examples that no run has tried; what fails is kept in build/found
#   make scale [ARGS=...]    simulated federations of 5, 50 and 200 brokers, as a table (200: 8 minutes)
#   make bridged [ARGS=...]  three Mosquittos with a gateway each, two brokers, ten kills or restarts of each kind
#   make chaos [ARGS=...]    seven brokers, a hundred clients, twenty kills, pauses and cuts in five minutes
#                            ARGS="--draw --rate 20000 --clients 30": as fast as the machine can, everything else from the seed
#   make load [ARGS=...]     longest turns, memory and a million retained messages, with real brokers
#   make fuzz [SECONDS=n]    malformed input to every parser; TARGETS="node link" for some of them
#   make bench [ARGS=...]    the same loads against mqttree and Mosquitto in turn
#   make converge [ARGS=...] how fast trees form and repair, as a table
#   make paths [ARGS=...]    what a hop costs, and how fast ways between brokers open and close, as a table
#   make containers          three brokers in podman, as compose.yaml has them, tried
#   make compose             compose.yaml itself with podman-compose, to a message and a picture of the dashboard
#   make picture             docs/pictures/dashboard*.png, of five brokers in a browser
#   make lock                new constraints.txt
#   make clean               removes what was made, .venv too

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test test-long compiled wheel interop check sim fresh scale bridged chaos load fuzz bench converge paths containers compose picture licences lock clean
MAKEFLAGS += --no-print-directory

# Debian keeps mosquitto and ip where only root's path looks.
export PATH := $(PATH):/usr/sbin:/sbin

PYTHON := .venv/bin/python
BROKERS ?= 3
SEEDS ?= 1000
FIRST ?= 0
SECONDS ?= 60
TARGETS ?=
ARGS ?=

help:
	@sed -n 's/^#   //p' Makefile

run:
	@scripts/setup venv clients
	@exec $(PYTHON) -m mqttree.broker.cli.live --brokers $(BROKERS) $(ARGS)

test:
	@scripts/setup venv brokers
	@scripts/test $(ARGS)

test-long:
	@scripts/setup venv brokers
	@scripts/test long

compiled:
	@scripts/setup venv compiler
	@scripts/compile

wheel:
	@scripts/setup venv compiler
	@scripts/compile wheel

interop:
	@scripts/setup venv brokers mqttjs foreign chromium shells
	@scripts/test interop

check:
	@scripts/setup venv
	@.venv/bin/ruff format --check --quiet . || { echo 'not formatted: .venv/bin/ruff format .'; exit 1; }
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo
	@$(PYTHON) -m pytest -q tests/text

sim:
	@scripts/setup venv
	@$(PYTHON) -m tests.sim --seeds $(SEEDS) --first $(FIRST) $(ARGS)

fresh:
	@scripts/setup venv
	@scripts/fresh $(SEEDS)

scale:
	@scripts/setup venv
	@$(PYTHON) -m tests.sim.scale $(ARGS)

bridged:
	@scripts/setup venv brokers
	@$(PYTHON) -m tests.bridged $(ARGS)

chaos:
	@scripts/setup venv brokers
	@$(PYTHON) -m tests.chaos $(ARGS)

load:
	@scripts/setup venv brokers
	@$(PYTHON) -m pytest tests/load $(ARGS)

fuzz:
	@scripts/setup venv
	@$(PYTHON) -m tests.fuzz --seconds $(SECONDS) $(TARGETS) $(ARGS)

bench:
	@scripts/setup venv brokers
	@.venv/bin/mqttree bench compare $(ARGS)

converge:
	@scripts/setup venv brokers
	@.venv/bin/mqttree bench converge $(ARGS)

paths:
	@scripts/setup venv brokers
	@.venv/bin/mqttree bench paths $(ARGS)

containers:
	@scripts/containers

compose:
	@scripts/containers compose

picture:
	@scripts/setup venv brokers chromium
	@$(PYTHON) -m tests.picture docs/pictures/dashboard.png

licences:
	@scripts/setup venv
	@$(PYTHON) scripts/licences >docs/licences.md

lock:
	@scripts/lock

clean:
	@scripts/compile clean
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
