"""Journals of simulated brokers, and clients that count on them."""

from __future__ import annotations

import random

from mqttree.broker.core.effects import Effect
from mqttree.broker.node import Node
from mqttree.broker.persistence.journal import Journal
from tests.kit.journal_harness import DiskEffect, Files
from tests.sim.clients import SimClient
from tests.sim.world import Host, World


class Disk:
    """The journal of one host. What is on its way to the file when the host is killed gets there,
    or does not, in order; while the disk `lags` it does not."""

    def __init__(self, world: World, host: Host, *, sync: bool) -> None:
        self.world, self.host, self.sync = world, host, sync
        self.rng = random.Random(world.seed * 1000 + host.index)
        self.files = Files()
        self.files.lazy = True
        self.under_way: list[DiskEffect] = []
        self.life = 0
        self.lags = False
        """Whether nothing gets to the file any more."""

    def started(self) -> None:
        """Give a node that has just been made what is there."""
        there = 0 if self.lags else self.rng.randrange(len(self.under_way) + 1)
        for effect in self.under_way[:there]:
            self.files.carry_out(effect)
        self.under_way = []
        self.files.untold = []
        self.life += 1
        node = self.host.running
        node.files = self.files  # type: ignore[attr-defined]
        take = node.take_effects

        def taken() -> list[Effect]:
            effects = take()
            mine = [e for e in effects if isinstance(e, DiskEffect)]
            if mine:
                self.under_way += mine
                takes = self.rng.uniform(0.0001, 0.02 if self.sync else 0.002)
                self.world.after(takes, self._written, len(mine), node, self.life)
            return [e for e in effects if e not in mine]

        node.take_effects = taken  # type: ignore[method-assign]
        journal = Journal(node, node.cluster, node.absent_members, sync=self.sync)
        node.attach_journal(journal)
        node.absent_members.begin(self.files.tail(node.config.id))
        files = self.files.segments
        journal.begin(self.files.image(), max(files, default=0) + 1, len(files), 0, self.world.now)

    def _written(self, count: int, node: Node, life: int) -> None:
        if self.lags or life != self.life or self.host.node is not node:
            return
        for effect in self.under_way[:count]:
            self.files.carry_out(effect)
        del self.under_way[:count]
        told, self.files.untold = self.files.untold, []
        for effect, error in told:
            self.host.do(lambda n, e=effect, why=error: n.answer(e, why, self.world.now), node)


class Stayer(SimClient):
    """A client whose session has to be there, whatever happened to its broker."""

    def _doubtful(self) -> bool:
        return False
