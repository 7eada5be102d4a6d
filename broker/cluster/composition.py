"""The modules of the cluster, put together: each gets those of its own floor and of the floors
beneath, and knows those above it by a Protocol only. What links and modules call back is here,
too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import Identity
from mqttree.broker.base.hybrid_clock import HybridClock
from mqttree.broker.base.timers import Deadline
from mqttree.broker.cluster.agenda import Agenda
from mqttree.broker.cluster.delivery.answers import Answers
from mqttree.broker.cluster.delivery.forwarder import Forwarder
from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
from mqttree.broker.cluster.delivery.incoming_batch import IncomingBatches
from mqttree.broker.cluster.delivery.link_acks import LinkAcks
from mqttree.broker.cluster.delivery.low_watermarks import LowWatermarks
from mqttree.broker.cluster.delivery.origins import Origins
from mqttree.broker.cluster.delivery.orphans import Orphans
from mqttree.broker.cluster.delivery.ports import DeliveringBroker, LogJournal
from mqttree.broker.cluster.delivery.pulls import Pulls
from mqttree.broker.cluster.delivery.remote_flow_control import RemoteFlowControl
from mqttree.broker.cluster.delivery.replay import LogWalks
from mqttree.broker.cluster.delivery.replay_log import ReplayLog
from mqttree.broker.cluster.delivery.resync import Resync
from mqttree.broker.cluster.delivery.subscription_start import (
    StartingBroker,
    StartsJournal,
    SubscriptionStarts,
)
from mqttree.broker.cluster.delivery.unordered_forwarder import UnorderedForwarder
from mqttree.broker.cluster.directory.link_state_directory import (
    CLIENTS_AT,
    NAME,
    LinkStateDirectory,
)
from mqttree.broker.cluster.directory.questions import ADMIN_ANSWER, ADMIN_QUESTION, Questions
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.events import (
    ClusterEvents,
    LinkBehind,
    LinkDrained,
    LinkUp,
)
from mqttree.broker.cluster.gone_brokers import GoneBrokers
from mqttree.broker.cluster.id_conflict import IdConflict
from mqttree.broker.cluster.link.link import Handler, Link
from mqttree.broker.cluster.link_registry import LinkRegistry
from mqttree.broker.cluster.placement.placement_service import PlacementService
from mqttree.broker.cluster.placement.ports import PlacingBroker
from mqttree.broker.cluster.retained_comparison import RetainedComparison
from mqttree.broker.cluster.retained_sync import RetainedSync, RetainingBroker
from mqttree.broker.cluster.sessions.competing_sessions import CompetingSessions
from mqttree.broker.cluster.sessions.evaluated import Evaluated
from mqttree.broker.cluster.sessions.handover import Handover
from mqttree.broker.cluster.sessions.merge import SessionMerge
from mqttree.broker.cluster.sessions.messages_under_way import MessagesUnderWay
from mqttree.broker.cluster.sessions.pending_takeover import PendingTakeover
from mqttree.broker.cluster.sessions.ports import SessionBroker, SessionJournal
from mqttree.broker.cluster.sessions.posted_sessions import PostedSessions
from mqttree.broker.cluster.sessions.queue_merge import QueueMerge
from mqttree.broker.cluster.sessions.recently_elsewhere import RecentlyElsewhere
from mqttree.broker.cluster.sessions.session_history import SessionHistory
from mqttree.broker.cluster.sessions.session_restoration import SessionRestoration
from mqttree.broker.cluster.sessions.takeover import Takeover
from mqttree.broker.cluster.sessions.tombstones import Tombstones
from mqttree.broker.cluster.sharing.shared_subscriptions import SharedSubscriptions
from mqttree.broker.cluster.strategy.routing_strategy import RoutingStrategy
from mqttree.broker.cluster.strategy.selection import strategy_for
from mqttree.broker.cluster.strategy.subscription_barrier import SubscriptionBarrier
from mqttree.broker.cluster.topology import Topology
from mqttree.broker.config.node_config import NodeConfig
from mqttree.discovery.membership import Membership
from mqttree.stp.tree import Tree

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.ports import AbsentMembers, StandbyImages


class FederatedJournal(LogJournal, StartsJournal, SessionJournal, Protocol):
    """The journal, which keeps messages for other brokers, of sessions, and the starts of
    subscriptions."""


class FederatedBroker(
    DeliveringBroker,
    StartingBroker,
    SessionBroker,
    RetainingBroker,
    PlacingBroker,
    Protocol,
):
    """What the cluster asks of its broker."""

    @property
    def deadline(self) -> Deadline:
        """When the driver is to call next."""

    @property
    def journal(self) -> FederatedJournal:
        """Records what is to survive a restart of this broker."""


class ClusterParts:
    """All modules of one broker's cluster, and what these ask of it."""

    absent_members: AbsentMembers
    images: StandbyImages
    """The modules that are built above the cluster."""

    def __init__(self, node: FederatedBroker, now: float, wall: float, rng: random.Random) -> None:
        """Build all modules; `Cluster.attach` makes them ready.

        Args:
            `node`: this broker.
            `now`: s, monotonic.
            `wall`: s since 1970, at the same moment.
            `rng`: makes all random numbers, so that a run can be repeated.
        """
        config = node.config
        self.node = node
        self.config: NodeConfig = config
        self.rng = rng
        self.entropy: Callable[[int], bytes] = rng.randbytes
        """Makes so many random bytes for keys and nonces; a driver replaces it by a secure
        source."""
        self.own: Identity = Identity(config.id, config.boot, Address(config.host, config.port))
        self.tree: Tree = Tree(self.own, config.capability, config.tree(), now, rng)
        self.membership: Membership = Membership(
            config.membership(node.limits), config.announced(), now, wall, rng
        )
        self.agenda: Agenda = Agenda(node.deadline, config.hello, config.link_timeout, now)
        self.enabled = config.discovery != "off" or bool(config.seeds)
        self.expects_others: bool = bool(config.seeds) or config.discovery in ("static", "dns")
        """Whether other brokers are known to exist, reachable or not: this one was told of seeds,
        or has met another one, in this incarnation or an earlier one."""
        self.events: ClusterEvents = ClusterEvents()
        self.link_registry: LinkRegistry = LinkRegistry(
            self,
            events=self.events,
            membership=self.membership,
            enabled=self.enabled,
            settle=self.agenda.settle,
            plan=self.agenda.plan,
        )
        self.links = self.link_registry.links
        self._build_routing(node)
        self._build_delivery(node, now)
        self._build_recovery(node)
        self._build_forwarding(node)
        self.clock: HybridClock = HybridClock(now, wall)
        self._build_sharing(node)
        self._build_sessions(node)
        self.retained_comparison: RetainedComparison = RetainedComparison(
            node, clock=self.clock, forwarder=self.forwarder, now=now
        )
        self.retained_sync: RetainedSync = RetainedSync(
            node,
            clock=self.clock,
            forwarder=self.forwarder,
            strategy=self.strategy,
            acks=self.acks,
            gap_recovery=self.gap_recovery,
            evaluated=self.evaluated,
            history=self.session_history,
            comparison=self.retained_comparison,
            stopped=self.agenda.stopped,
        )
        self._build_links(node)
        self.gone_brokers: GoneBrokers = GoneBrokers(node, self.directory, self.clock)
        self.directory.post(NAME, config.name.encode())
        if where := config.clients_at():
            self.directory.post(CLIENTS_AT, where.encode())

    def _build_routing(self, node: FederatedBroker) -> None:
        """Build what decides over which links a message goes."""
        self.directory: LinkStateDirectory = LinkStateDirectory(
            node, self.own, self.events, self.agenda
        )
        self.database = self.directory.database
        self.bus: UnicastBus = UnicastBus(node, self.directory)
        self.strategy: RoutingStrategy = strategy_for(node, self.directory, self.bus, self)
        self.bus.strategy = self.strategy
        self.barrier: SubscriptionBarrier = SubscriptionBarrier(
            node,
            self.own,
            directory=self.directory,
            strategy=self.strategy,
            links=self.links,
            handshakes=self.link_registry.handshakes,
            searching=self.membership.searching if self.enabled else None,
            delivery=self,
        )
        self.admin_questions: Questions = Questions(
            node, self.bus, self.agenda, ADMIN_QUESTION, ADMIN_ANSWER
        )
        self.placement: PlacementService = PlacementService(
            node,
            tree=self.tree,
            directory=self.directory,
            bus=self.bus,
            strategy=self.strategy,
            alarm=self.agenda,
        )

    def _build_delivery(self, node: FederatedBroker, now: float) -> None:
        """Build what forwards each message once and keeps it for neighbours that lack it."""
        config = self.config
        self.origins: Origins = Origins(self.own, now, most_gaps=node.limits.max_gaps)
        self.replay_log: ReplayLog = ReplayLog(
            node.counters,
            config.log_limit(node.limits),
            config.log_room(node.limits),
            limits=node.limits,
        )
        self.acks: LinkAcks = LinkAcks(
            node,
            log=self.replay_log,
            strategy=self.strategy,
        )
        self.remote_flow_control: RemoteFlowControl = RemoteFlowControl(
            node, self.database, self.bus
        )

    def _build_recovery(self, node: FederatedBroker) -> None:
        """Build what finds out which messages are missing here, and asks for them."""
        self.subscription_starts: SubscriptionStarts = SubscriptionStarts(
            node,
            self.origins,
            self.database,
            self.barrier,
            self.expects_old_messages,
            enabled=self.enabled,
        )
        self.orphans: Orphans = Orphans(self.database, self.origins)
        self.walks: LogWalks = LogWalks(node, self.replay_log, self.strategy, self.orphans, self)
        self.pulls: Pulls = Pulls(
            node,
            origins=self.origins,
            links=self.links,
            database=self.database,
            bus=self.bus,
            starts=self.subscription_starts,
            above=self,
            received=self._received,
        )
        self.gap_recovery: GapRecovery = GapRecovery(
            node,
            origins=self.origins,
            log=self.replay_log,
            directory=self.directory,
            bus=self.bus,
            strategy=self.strategy,
            flow_control=self.remote_flow_control,
            starts=self.subscription_starts,
            orphans=self.orphans,
            pulls=self.pulls,
            events=self.events,
            above=self,
            is_member=self.membership.is_member,
        )
        self.low_watermarks: LowWatermarks = LowWatermarks(self.origins, self.strategy)

    def _build_forwarding(self, node: FederatedBroker) -> None:
        """Build what passes messages on, and what sends those again that another broker lacks."""
        kind = Forwarder if self.strategy.ordered else UnorderedForwarder
        self.forwarder: Forwarder = kind(
            node,
            origins=self.origins,
            log=self.replay_log,
            links=self.links,
            strategy=self.strategy,
            gap_recovery=self.gap_recovery,
            flow_control=self.remote_flow_control,
            above=self,
        )
        self.incoming_batches: IncomingBatches = IncomingBatches(
            node, self.forwarder, self.strategy, self.gap_recovery, above=self
        )
        self.resync: Resync = Resync(
            node,
            forwarder=self.forwarder,
            directory=self.directory,
            strategy=self.strategy,
            acks=self.acks,
            starts=self.subscription_starts,
            orphans=self.orphans,
            pulls=self.pulls,
            gap_recovery=self.gap_recovery,
            walks=self.walks,
            alarm=self.agenda,
        )
        self.answers: Answers = Answers(
            node,
            origins=self.origins,
            log=self.replay_log,
            links=self.links,
            database=self.database,
            bus=self.bus,
            strategy=self.strategy,
            starts=self.subscription_starts,
            acks=self.acks,
            walks=self.walks,
            above=self,
            gather=self.resync.gather,
        )

    def _received(self, link: Link, data: bytes, body: int, now: float) -> None:
        self.incoming_batches.received(link, data, body, now)

    def _build_sharing(self, node: FederatedBroker) -> None:
        """Build shared subscriptions, whose members may be at several brokers."""
        self.sharing: SharedSubscriptions = SharedSubscriptions(
            node,
            self.own,
            directory=self.directory,
            bus=self.bus,
            strategy=self.strategy,
            orphans=self.orphans,
            forwarder=self.forwarder,
            leaving=self,
            alarm=self.agenda,
            above=self,
        )
        self.assignments = self.sharing.assignments
        self.custody = self.sharing.custody
        self.catchup = self.sharing.catchup

    def _build_sessions(self, node: FederatedBroker) -> None:
        """Build what keeps one session for a client id at all brokers together."""
        self.evaluated: Evaluated = Evaluated(node, self.origins, self.sharing, self)
        self.recently_elsewhere: RecentlyElsewhere = RecentlyElsewhere(node, self.directory)
        self.session_history: SessionHistory = SessionHistory(
            node,
            database=self.database,
            origins=self.origins,
            log=self.replay_log,
            evaluated=self.evaluated,
        )
        self.tombstones: Tombstones = Tombstones(node, self.directory)
        self._build_handover(node)
        self.queue_merge: QueueMerge = QueueMerge(
            node,
            gap_recovery=self.gap_recovery,
            subscription_starts=self.subscription_starts,
            evaluated=self.evaluated,
            history=self.session_history,
        )
        self.posted_sessions: PostedSessions = PostedSessions(
            node,
            directory=self.directory,
            links=self.links,
            handover=self.handover,
            tombstones=self.tombstones,
            neighbours=self,
        )
        self.session_merge: SessionMerge = SessionMerge(
            node,
            database=self.database,
            bus=self.bus,
            gap_recovery=self.gap_recovery,
            queues=self.queue_merge,
            handover=self.handover,
            tombstones=self.tombstones,
            posted=self.posted_sessions,
            evaluated=self.evaluated,
            barrier=self.barrier,
            starts=self.subscription_starts,
        )
        self._build_takeover(node)

    def _build_handover(self, node: FederatedBroker) -> None:
        """Build what gives sessions to other brokers."""
        under_way = MessagesUnderWay(
            database=self.database,
            origins=self.origins,
            orphans=self.orphans,
            gap_recovery=self.gap_recovery,
        )
        self.handover: Handover = Handover(
            node,
            directory=self.directory,
            bus=self.bus,
            history=self.session_history,
            under_way=under_way,
            recently_elsewhere=self.recently_elsewhere,
        )

    def _build_takeover(self, node: FederatedBroker) -> None:
        """Build what takes sessions from other brokers."""
        pending: dict[str, PendingTakeover] = {}
        competing = CompetingSessions(
            node,
            clock=self.clock,
            directory=self.directory,
            taken=pending,
            handover=self.handover,
            merging=self.session_merge,
            tombstones=self.tombstones,
        )
        restoration = SessionRestoration(
            node,
            subscription_starts=self.subscription_starts,
            evaluated=self.evaluated,
            history=self.session_history,
            queues=self.queue_merge,
            tombstones=self.tombstones,
            posted=self.posted_sessions,
        )
        self.takeover: Takeover = Takeover(
            node,
            pending=pending,
            clock=self.clock,
            links=self.links,
            directory=self.directory,
            bus=self.bus,
            posted=self.posted_sessions,
            competing=competing,
            restoration=restoration,
            handover=self.handover,
            merging=self.session_merge,
        )

    def _build_links(self, node: FederatedBroker) -> None:
        """Build what takes the records of links, and collect what is due with time."""
        self.id_conflict: IdConflict = IdConflict(node, self.links, self.link_registry.on_link_down)
        self.topology: Topology = Topology(
            node,
            tree=self.tree,
            membership=self.membership,
            links=self.links,
            events=self.events,
            lose=self.link_registry.on_link_down,
            same_id=self.id_conflict.suspect,
        )
        self.records: dict[int, Handler] = {
            **self.topology.records,
            **self.resync.records,
            **self.directory.records,
            **self.bus.records,
            **self.retained_comparison.records,
            **self.low_watermarks.records,
            **self.barrier.records,
            **self.subscription_starts.records,
            **self.strategy.records,
        }
        self.agenda.connect(
            lambda: bool(self.enabled or self.links or self.link_registry.handshakes),
            steps=(
                self.topology.settle,
                self.directory.settle,
                self.strategy.settle,
                self.resync.proceed,
            ),
            ends=(self.topology.gossip, self.link_registry.send_records),
            deadlines=(
                lambda now: self.id_conflict.next_deadline(),
                lambda now: self.membership.next_deadline(),
                lambda now: self.tree.next_deadline(),
                lambda now: self.directory.next_deadline(),
                lambda now: self.strategy.next_deadline(),
                lambda now: self.link_registry.next_deadline(),
                lambda now: self.topology.change_deadline(),
                self.topology.gossip_deadline,
            ),
            suspended=(
                self.gap_recovery.on_suspended,
                self.link_registry.on_suspended,
                self.takeover.on_suspended,
                # What is stopped then is still to be read.
                self.on_suspended,
            ),
        )

    def on_suspended(self, seconds: float, now: float) -> None:
        """Note that this broker did not run for `seconds` until `now` (s)."""
        self.images.on_suspended(seconds, now)

    # ---------------------------------------------------------------- what its modules ask

    @property
    def memory(self) -> int:
        """Bytes that are kept for clients of other brokers, and for what these brokers post,
        about."""
        noted = self.absent_members.memory + self.subscription_starts.memory
        moving = self.handover.size + self.takeover.arriving + self.session_merge.arriving
        said = self.database.memory + self.strategy.memory + self.images.size
        return self.sharing.memory + noted + moving + said + self.gap_recovery.release.held_bytes

    def hurry(self, at: float) -> None:
        """Have what was decided carried out at `at` (s), or as soon as it can be."""
        self.agenda.hurry(at)

    def tell(self, now: float) -> None:
        """Tell neighbours what was posted, ahead of what is sent to clients after this; a little
        later if much was sent just before."""
        if self.directory.may_tell(now):
            self.agenda.settle(now)

    def expect_others(self) -> None:
        """Keep messages in the log from now on, as other brokers may miss some."""
        self.expects_others = self.node.federated = True

    def begin_log(self, event: LinkUp) -> None:
        """Keep messages for a neighbour from now on."""
        self.expect_others()

    def on_link_alive(self, link: Link, now: float) -> None:
        """Note that part of a packet came: the neighbour lives, however large the packet."""
        self.topology.on_link_alive(link, now)

    def rtt_sample(self, link: Link, rtt_ms: float, now: float) -> None:
        """Take a round trip that was measured on a `link`: `rtt_ms` (ms), at `now` (s)."""
        self.strategy.on_link_measured(link)
        if link.peer is not None and self.tree.rtt_sample(link.peer.id, rtt_ms, now):
            self.agenda.settle(now)

    def record_received(self, link: Link, kind: int, body: bytes, now: float) -> None:
        """Take one record of a PINGREQ; one of an unknown type is skipped. `link`: over which it
        came; `kind`: its type; `body`: the record without the type; `now`: s.

        Raises:
            MalformedPacket: it is invalid.
        """
        handler = self.records.get(kind)
        if handler is not None:
            handler(link, body, now)
        self.agenda.settle(now)

    def link_behind(self, link: Link) -> None:
        """Note that a link's queue overflowed."""
        self.events.dispatch(LinkBehind(link))

    def link_caught_up(self, link: Link, now: float) -> None:
        """Note that a link's queue has drained: the neighbour gets what it missed."""
        self.events.dispatch(LinkDrained(link))
        self.agenda.settle(now)

    def expects_old_messages(self) -> bool:
        """Whether old messages may arrive: a broker is away, or has been asked for messages that
        are missing here."""
        return bool(len(self.absent_members)) or self.gap_recovery.unsettled()

    def is_handing_over(self, client_id: str) -> bool:
        """Whether another broker is taking the session of a client."""
        return self.handover.is_handing_over(client_id)
