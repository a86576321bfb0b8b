"""What is done before a run begins: the plan is made, its ceiling found, the target looked up.

All of it happens before second 0, on every worker alike and from the same seed, so that no worker
needs to ask another what its part is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kvbench import __version__
from kvbench.clock import utc
from kvbench.errors import TargetError
from kvbench.load.client import Client, Timeouts, resolve
from kvbench.load.outcome import server_message
from kvbench.load.reply import Reply
from kvbench.openai.stream import StreamFold
from kvbench.oracle.ceiling import ceiling
from kvbench.records.manifest import Ceiling, Manifest, Workload, this_machine
from kvbench.records.unsent import Expected
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.load import fingerprint, load_plan
from kvbench.workload.render import Renderer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbench.clock import Clock
    from kvbench.load.request import RequestForm
    from kvbench.load.settings import Settings
    from kvbench.load.target import Target
    from kvbench.workload.plan import Plan


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready to be sent.

    Attributes:
        plan: The whole plan.
        renderer: Makes the bodies of its turns.
        expected: By index of the turn.
        tokenizer: Where the tokenizer lies.
    """

    plan: Plan
    renderer: Renderer
    expected: Mapping[int, Expected]
    tokenizer: str


def plan_of(settings: Settings) -> Plan:
    """Return the whole plan of a run, which every process makes itself.

    Raises:
        InputError: The workload or the trace is wrong.
    """
    return load_plan(
        settings.workload,
        settings.trace,
        seed=settings.seed,
        limit=settings.limit,
        speed=settings.speed,
    )


def prepare(settings: Settings) -> Prepared:
    """Make the plan and find its ceiling.

    Raises:
        InputError: The workload, the trace or the tokenizer is wrong.
    """
    plan = plan_of(settings)
    tokenizer = Tokenizer.load(settings.tokenizer)
    renderer = Renderer(plan, tokenizer)
    top = ceiling(plan, renderer, settings.block_size)
    counts = zip(plan.turns, top.prompt_tokens, top.cached_tokens, strict=True)
    expected = {turn.index: Expected(prompt, cached) for turn, prompt, cached in counts}
    return Prepared(plan, renderer, expected, str(tokenizer.path))


async def connect(target: Target, settings: Settings, clock: Clock) -> Client:
    """Return a client for the target.

    Raises:
        TargetError: Its name does not resolve.
    """
    timeouts = Timeouts(total=settings.request_timeout)
    address = await resolve(target, timeouts.connect)
    return Client(target, address, clock, timeouts, max_idle=settings.max_in_flight)


async def find_model(
    client: Client, form: RequestForm, target: Target, wanted: str | None
) -> tuple[str, int | None]:
    """Ask the target which models it serves; return one, and its window if it says.

    Args:
        client: Asks.
        form: How.
        target: Whom.
        wanted: The model to ask for; None takes the first.

    Raises:
        TargetError: No model is wanted, and it does not answer with a list of models.
    """
    try:
        models = await _models(client, form, target)
    except TargetError:
        if wanted is None:
            raise
        return wanted, None
    chosen = next((model for model in models if model.id == wanted), None)
    if wanted is None:
        chosen = models[0]
    return (wanted or models[0].id), None if chosen is None else chosen.max_model_len


async def _models(client: Client, form: RequestForm, target: Target) -> list[_Model]:
    """Return the models that a target serves, one at least.

    Raises:
        TargetError: It does not answer, or not with a list of models.
    """
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    reply = Reply(StreamFold())
    reply.keep_body = True
    client.post(form.models(), reply, future.set_result)
    await future
    hint = "pass the base URL of a vLLM pod or a kvbench router, or name the --model yourself"
    if reply.status is None:
        said = reply.failure[1] if reply.failure else "no response"
        raise TargetError(f"the target does not answer: {said}", hint=hint)
    try:
        models = msgspec.json.decode(reply.body, type=_Models).data
    except msgspec.MsgspecError:
        models = []
    if not models:
        said = server_message(reply.body)
        raise TargetError(
            f"{target.authority} does not list its models: {reply.status}: {said}", hint=hint
        )
    return models


class _Model(msgspec.Struct):
    """One model of the list."""

    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    """The list, as OpenAI has it."""

    data: list[_Model]


def manifest(settings: Settings, prepared: Prepared, model: str, command: list[str]) -> Manifest:
    """Return the manifest of a run that Locust was started for by hand."""
    plan = prepared.plan
    source = settings.source
    return Manifest(
        kvbench_version=__version__,
        created=utc().isoformat(),
        command=command,
        name=settings.run_name,
        target=settings.host,
        model=model,
        tokenizer=prepared.tokenizer,
        workload=Workload(
            file=str(settings.workload) if settings.workload else None,
            trace=str(settings.trace) if settings.trace else None,
            sha256=fingerprint(source),
            speed=settings.speed,
            limit=settings.limit,
        ),
        seed=plan.seed,
        api=plan.api,
        history=plan.history,
        isolation=settings.isolation,
        warm=settings.warm,
        block_size=settings.block_size,
        planned_turns=len(plan.turns),
        planned_sessions=plan.sessions,
        ceiling=Ceiling(
            tokens=sum(e.cached_tokens or 0 for e in prepared.expected.values()),
            prompt_tokens=sum(e.prompt_tokens or 0 for e in prepared.expected.values()),
        ),
        machine=this_machine(),
    )
