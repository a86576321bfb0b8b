"""The router as a process lives it: its beginning, its pods, what goes on beside requests, its end.

How requests are answered is said in `intake`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kvbench.clock import utc_seconds
from kvbench.errors import InputError, TargetError
from kvbench.http.host import resolve
from kvbench.http.server import Server, serve
from kvbench.kvcache.ledger import Ledger
from kvbench.policies.names import check_policy
from kvbench.router.access import Access, Grant, read_keys
from kvbench.router.admin import Admin
from kvbench.router.answers import worded
from kvbench.router.books import Books, WatchedIndex
from kvbench.router.discovery import Sources
from kvbench.router.fleet import Fleet, Policies
from kvbench.router.intake import Intake
from kvbench.router.journal import Journal
from kvbench.router.membership import Membership
from kvbench.router.pages import Pages
from kvbench.router.probing import probe_for_ever
from kvbench.router.settings import Settings, given_by
from kvbench.router.tokens import PromptTokens
from kvbench.router.watched import WatchedFile
from kvbench.zmqfeed.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from kvbench.clock import Clock
    from kvbench.router.roster import Member
    from kvbench.zmqfeed.sources import EventSource

__all__ = ["Router", "Settings"]

logger = logging.getLogger(__name__)

_MOST_ADMIN_BODY = 2**16
_MOST_HELD = 2**30  # bytes of all bodies that wait for a pod or for their own end
_GLANCE_S = 0.02  # between two looks at whether all has ended


class Router:
    """A router in front of pods.

    Args:
        pods: Their URLs, and DNS names that stand for pods.
        settings: How it behaves.
        clock: What time it is.
        utc: Calendar seconds.
        resolve: Returns the addresses of a host.

    Attributes:
        fleet: The pods, and all that requests share.
        sources: Where pods come from.
        pages: What it answers itself.
        intake: How it answers.

    Raises:
        InputError: A pod is none, or there is no such policy; or a file of the settings is wrong.
    """

    def __init__(
        self,
        pods: Sequence[str],
        settings: Settings,
        clock: Clock,
        utc: Callable[[], float] = utc_seconds,
        resolve: Callable[[str, int], Awaitable[list[str]]] = resolve,
    ) -> None:
        self._settings = settings
        check_policy(settings.policy, "--policy")
        for name in settings.shadows:
            check_policy(name, "--shadow")
        self.sources = Sources(pods, settings.pods_file, resolve)
        if self.sources.none and not settings.admin:
            raise InputError(
                "--pod: expected at least one pod, got none", hint="--pod http://127.0.0.1:8000"
            )
        index = WatchedIndex(Ledger(utc), clock)
        with given_by("--tokenizer"):
            tokens = PromptTokens(settings.tokenizer)
        journal = Journal(settings.decision_log)
        self.fleet = Fleet(
            Membership(),
            Policies(settings.policy, settings.seed, index),
            settings.limits,
            clock,
            Books(index, tokens, journal, utc),
            router=settings.name.encode(),
        )
        self.fleet.account.shadow(settings.shadows, settings.policy, settings.seed)
        self.access = Access(())
        self._keys: WatchedFile[list[Grant]] | None = None
        if settings.keys_file is not None:
            self._keys = WatchedFile(settings.keys_file, read_keys, self.access.grant)
            with given_by("--api-keys-file"):
                self._keys.load()
        self.pages = Pages(
            self.fleet, settings.probe_timeout_s, self.read_levels, settings.max_body
        )
        self.intake = Intake(self.fleet, self.pages, self.access, settings, self._spawn)
        self._members: dict[str, Member] = {}
        self._subscriber: Subscriber | None = None
        self._started = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._server: Server | None = None
        self._admin: Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen and probe; return the URL.

        Raises:
            TargetError: The address cannot be bound, or an endpoint of KV events cannot be had.
        """
        await self.sources.resolve()
        handler = self.intake.handle if self._keys is None else self.intake.authorize
        most = self._settings.max_body
        self._server = await serve(
            handler,
            host,
            port,
            max_body=most,
            max_held=max(_MOST_HELD, 4 * most),
            refusal=self.pages.refusal,
        )
        self._subscriber = Subscriber(self.fleet.index.ledger)
        self.gather_pods()
        self._started = True
        for work in (self._sweep(), self._look(), self._ask_dns()):
            self._spawn(work)
        return self._server.url

    async def start_admin(self, port: int) -> str:
        """Listen for the admin API, on loopback; return the URL.

        Raises:
            TargetError: The port cannot be bound.
        """
        admin = Admin(self)
        self._admin = await serve(
            admin.handle, "127.0.0.1", port, max_body=_MOST_ADMIN_BODY, refusal=worded
        )
        return self._admin.url

    async def stop(self, grace_s: float) -> None:
        """Refuse what is new, let requests end for `grace_s` seconds, cut what is left."""
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        self.pages.ending = True
        if self._server is not None:
            self._server.handler = self.intake.turn_away
            while self.intake.busy and loop.time() < until:  # noqa: ASYNC110 - once in a lifetime
                await asyncio.sleep(_GLANCE_S)
            for forwarding in tuple(self.fleet.under_way):
                forwarding.stop()
            await self._server.close(max(until - loop.time(), 0.0))
        if self._admin is not None:
            await self._admin.close(0.0)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in self.fleet.pools.values():
            pool.close()
        self.intake.close()
        if self._subscriber is not None:
            self._subscriber.close()
        self.fleet.account.journal.close()

    # Its pods.

    def gather_pods(self) -> None:
        """Take in the pods that are wanted and not there; send away those that are not wanted."""
        wanted = self.sources.roster.wanted()
        for name, member in list(self._members.items()):
            if wanted.get(name) != member:
                self._lose(name)
        for name, member in wanted.items():
            if name not in self._members:
                self._gain(member)

    def _gain(self, member: Member) -> None:
        """Take in a pod."""
        self._members[member.name] = member
        pod = self.fleet.add(member.address)
        logger.info("%s joined%s", pod.name, "" if member.events is None else ", with KV events")
        if member.events is not None:
            pod.given = member.events.beside(member.address.url)
        if member.events is not None:
            self._follow(pod.name, member.events)
        every_s, timeout_s = self._settings.probe_every_s, self._settings.probe_timeout_s
        if every_s > 0:
            work = probe_for_ever(self.fleet, pod, every_s, timeout_s)
            self._probes[pod.name] = self._spawn(work)

    def _follow(self, pod: str, events: EventSource) -> None:
        """Hear a pod's KV events; one that comes later and cannot be heard is estimated.

        Raises:
            TargetError: Its endpoint cannot be had, and the router is only starting.
        """
        if self._subscriber is None:
            return
        try:
            self._subscriber.follow(pod, events)
        except TargetError as error:
            if not self._started:
                raise
            logger.error("%s is routed by estimate: %s", pod, error.message)  # noqa: TRY400 - said

    def _lose(self, name: str) -> None:
        """Send a pod away: it gets no more requests, and those that it has end."""
        logger.info("%s left: it gets no more requests, those that it has end", name)
        del self._members[name]
        if name in self._probes:
            self._probes.pop(name).cancel()
        if self._subscriber is not None:
            self._subscriber.drop(name)
        self.fleet.remove(name)

    # What goes on beside requests.

    def read_levels(self) -> None:
        """Set what is read off and not counted, before a scrape."""
        fleet, troubles = self.fleet, self.sources.troubles()
        if self._keys is not None:
            troubles[str(self._keys.path)] = self._keys.trouble
        fleet.meters.read_pods(fleet.membership, fleet.now())
        fleet.meters.read_ledger(fleet.index.ledger)
        fleet.meters.read_tokens(fleet.tokens)
        fleet.meters.read_models(fleet.models)
        fleet.meters.read_sources(troubles)
        room = self.intake.room
        fleet.meters.read_limits(self.access.holders.values(), 0 if room is None else room.waiting)

    async def _sweep(self) -> None:
        """Enforce the limits of time."""
        settings = self._settings
        limits = settings.limits
        tick = min(1.0, limits.first_byte_s / 4, limits.idle_s / 4, settings.patience_s / 4)
        while True:
            await asyncio.sleep(tick)
            self.fleet.sweep()
            self.fleet.account.journal.flush()
            if self._subscriber is not None:
                self._subscriber.sweep()
            if self.intake.room is not None:
                self.intake.room.sweep(self.fleet.now())

    async def _look(self) -> None:
        """Read files again that have changed."""
        while True:
            await asyncio.sleep(self._settings.look_every_s)
            await self.sources.reread()
            self.gather_pods()
            if self._keys is not None:
                await self._keys.refresh()

    async def _ask_dns(self) -> None:
        """Resolve names again."""
        while True:
            await asyncio.sleep(self._settings.resolve_every_s)
            await self.sources.resolve()
            self.gather_pods()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something beside the server, for as long as the server."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Take note that something beside the server has ended; that it broke is a bug."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the router failed beside its requests", exc_info=error)
