"""The simulated pod: vLLM's HTTP face in front of an engine that is only a model.

Owns: which path does what, and how a request becomes sequences in the engine. What it answers is
laid out by `kvbench.pod.face`, when it answers is decided by the engine, and what a request may
say by `kvbench.pod.request`.

Beside vLLM's own paths there are `GET /debug/lateness`, and in dev mode `GET` and `POST /faults`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from kvbench.engine.publication import EventCollector
from kvbench.engine.scheduler import Engine
from kvbench.engine.values import EngineRequest
from kvbench.errors import InputError
from kvbench.pod import errors, messages, request, responses
from kvbench.pod.answer import After, Answer, StopText, answer_key, natural_length
from kvbench.pod.driver import Driver
from kvbench.pod.face import Face
from kvbench.pod.faults import Faults, parse_fault
from kvbench.pod.generation import VARY, Generation, Strand
from kvbench.pod.metrics import CONTENT_TYPE, PodMetrics
from kvbench.pod.prompts import allowed_tokens, encode, encode_conversation, encode_text
from kvbench.text.compose import Composer

if TYPE_CHECKING:
    from kvbench.clock import Clock
    from kvbench.engine.values import EngineConfig, StepResult, TimeModel
    from kvbench.http.exchange import Exchange, Request
    from kvbench.pod.face import AnyFace
    from kvbench.pod.faults import Trouble
    from kvbench.pod.publisher import Publisher
    from kvbench.pod.request import Ask
    from kvbench.text.tokenizer import Tokenizer

MakeFace = Callable[[int], "AnyFace"]
Methods = dict[str, Callable[["Exchange"], None]]

logger = logging.getLogger(__name__)

VERSION = "0.32.0"
"""The release of vLLM whose face this is."""

_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY")
_PREFLIGHT_VARIES = (
    b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers, "
    b"Access-Control-Request-Private-Network"
)
_INLINE = 8_000  # characters that are tokenised at once; more goes to a thread


@dataclass(frozen=True, slots=True)
class PodConfig:
    """What a pod is.

    Attributes:
        model: Name under which it serves its model.
        tokenizer: Its tokenizer.
        engine: Its engine's settings.
        time: How long its steps take.
        tells_cached: Whether usage tells cached tokens (`--enable-prompt-tokens-details`).
        takes_tools: Whether chats may have tools that the model may call
            (`--enable-auto-tool-choice`).
        dev_mode: Whether the cache can be reset and faults be set over HTTP.
        seed: Of what it says, and of faults.
        request_s: What a request costs before the engine sees it, seconds.
        request_token_s: The same per token of its prompt.
        num_gpu_blocks_override: Blocks of its cache if they were set by hand, for its metrics.
    """

    model: str
    tokenizer: Tokenizer
    engine: EngineConfig
    time: TimeModel
    tells_cached: bool = True
    takes_tools: bool = False
    dev_mode: bool = False
    seed: int = 0
    request_s: float = 0.0
    request_token_s: float = 0.0
    num_gpu_blocks_override: int | None = None


class Pod:
    """A pod without its listening socket. Must be made in a running event loop.

    Args:
        config: What it is.
        clock: Against which its engine runs.
        utc: Calendar seconds, for answers and events.
        publisher: Where KV events go; None publishes none.
        faults: What goes wrong.
    """

    def __init__(
        self,
        config: PodConfig,
        clock: Clock,
        utc: Callable[[], float],
        *,
        publisher: Publisher | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.config = config
        self.faults = faults or Faults()
        self.tells_cached = config.tells_cached
        self._clock = clock
        self._utc = utc
        self._publisher = publisher
        self._composer = Composer(config.tokenizer, config.seed, most_tokens=200_000)
        self._after = _what_a_chat_ends_with(config.tokenizer)
        self._end_id = config.tokenizer.eos_token_id
        name = f"{config.model}\x1f{config.tokenizer.path}\x1f{config.engine}"
        self._fingerprint = f"vllm-{VERSION}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        self._threads = ThreadPoolExecutor(1, "tokenize")
        self._live: set[Generation] = set()
        self._requests = self._sequences = 0
        self._routes = self._make_routes()
        self._boot()

    def handle(self, exchange: Exchange) -> None:
        """Answer one exchange, now or later."""
        path, method = exchange.request.path, exchange.request.method
        methods = self._routes.get(path) or self._of_response(path)
        if method == "OPTIONS" and _is_preflight(exchange.request):
            _refuse_preflight(exchange)
        elif methods is None and path != "/" and path.removesuffix("/") in self._routes:
            host = exchange.request.header("host") or ""
            target = f"http://{host}{path.removesuffix('/')}"
            headers = ((b"location", target.encode("latin-1")), VARY)
            exchange.respond(307, b"", content_type=None, headers=headers)
        elif methods is None:
            self._refuse(exchange, errors.DetailError("Not Found", status=404))
        elif method not in methods:
            allow = ((b"allow", ", ".join(methods).encode()), VARY)
            body = errors.DetailError("Method Not Allowed", status=405).body
            exchange.respond(405, body, headers=allow)
        else:
            self._guarded(exchange, methods[method])

    def restart(self) -> None:
        """Do what a crash and a restart do: cut all streams, forget the cache, count from 0."""
        for generation in tuple(self._live):
            generation.cut()
        self._task.cancel()
        if self._publisher is not None:
            self._publisher.restart()
        self._boot()

    async def close(self) -> None:
        """Stop the engine; exchanges have ended by now."""
        self._task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._publisher is not None:
            await self._publisher.close()

    # What the driver tells.

    def step_began(self, result: StepResult) -> None:
        """Count who was scheduled."""
        self.metrics.step_began(result)

    def step_done(self, result: StepResult) -> None:
        """Count, and publish what became of the cache."""
        self.metrics.step_done(result)
        events = self._collector.take()
        if events and self._publisher is not None:
            lost = self.faults.drops_events(self._publisher.published)
            self._publisher.publish(events, lost=lost)

    def created_tokens(self, prompt: int, cached: int) -> int:
        """Return how many of a prompt's tokens were newly cached: its full blocks' others."""
        size = self.config.engine.block_size
        whole = prompt // size * size if self.config.engine.enable_prefix_caching else 0
        return max(0, whole - cached)

    # Inside.

    def _boot(self) -> None:
        """Begin with an empty cache and counters at 0."""
        config = self.config
        self._collector = EventCollector()
        sink = self._collector if self._publisher is not None else None
        self._engine = Engine(config.engine, config.time, sink)
        self.driver = Driver(self._engine, self._clock, self)
        self.metrics = PodMetrics(
            self._engine,
            self.driver.lateness,
            config.model,
            config=_cache_config(config),
            created=self._utc(),
        )
        self._task = asyncio.get_running_loop().create_task(self.driver.run())

    def _make_routes(self) -> dict[str, Methods]:
        """Return what each path does, by method."""
        routes: dict[str, Methods] = {
            "/v1/chat/completions": {"POST": self._generate},
            "/v1/completions": {"POST": self._generate},
            messages.MESSAGES: {"POST": self._generate},
            messages.COUNT: {"POST": self._count},
            responses.RESPONSES: {"POST": self._generate},
            "/v1/chat/completions/render": {"POST": _refuse_render},
            "/v1/completions/render": {"POST": _refuse_render},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._empty},
            "/ping": {"GET": self._empty, "POST": self._empty},
            "/load": {"GET": self._load},
            "/version": {"GET": lambda ex: self._json(ex, {"version": VERSION})},
            "/metrics": {"GET": self._metrics},
            "/metrics/": {"GET": self._metrics},
            "/debug/lateness": {
                "GET": lambda ex: self._json(ex, self.driver.lateness.summary()),
            },
        }
        if self.config.dev_mode:
            routes["/reset_prefix_cache"] = {"POST": self._reset}
            routes["/is_sleeping"] = {"GET": lambda ex: self._json(ex, {"is_sleeping": False})}
            routes["/faults"] = {"GET": self._tell_faults, "POST": self._set_faults}
            routes["/restart"] = {"POST": self._restart}
        return routes

    def _of_response(self, path: str) -> Methods | None:
        """Return what the path of one response does: nothing but to say that it is not kept."""
        identity, _, act = path.removeprefix(f"{responses.RESPONSES}/").partition("/")
        if identity == path or not identity or act not in {"", "cancel"}:
            return None

        def refuse(_: Exchange) -> None:
            raise responses.not_kept(identity)

        return {"POST" if act else "GET": refuse}

    def _guarded(self, exchange: Exchange, act: Callable[[Exchange], None]) -> None:
        """Act; what is refused is answered as vLLM answers it."""
        try:
            act(exchange)
        except errors.ApiError as error:
            self._refuse(exchange, error)
        except InputError as error:
            self._refuse(exchange, errors.ApiError(error.message))
        except Exception:
            logger.exception("%s: a bug of the pod", exchange.request.path)
            bug = errors.ApiError("internal error", status=500, kind="InternalServerError")
            self._refuse(exchange, bug)

    def _refuse(self, exchange: Exchange, error: errors.ApiError) -> None:
        """Answer with an error."""
        if not exchange.started:
            anthropic = exchange.request.path in {messages.MESSAGES, messages.COUNT}
            body = errors.in_anthropics_form(error) if anthropic else error.body
            exchange.respond(error.status, body, headers=(VARY,))

    def _json(self, exchange: Exchange, value: object) -> None:
        """Answer with JSON."""
        exchange.respond(200, errors.to_json(value), headers=(VARY,))

    def _empty(self, exchange: Exchange) -> None:
        """Answer that all is well."""
        exchange.respond(200, b"", content_type=None, headers=(VARY,))

    def _body(self, exchange: Exchange) -> object:
        """Return the request's JSON."""
        asked = exchange.request
        return request.read_json(asked.header("content-type"), asked.body)

    # Text.

    def _generate(self, exchange: Exchange) -> None:
        """Begin to answer a request for text; long prompts are tokenised in a thread."""
        self._requests += 1
        trouble = self.faults.of_request(self._requests)
        if trouble.status is not None:
            message = "an error that was ordered"
            kind = "InternalServerError" if trouble.status >= 500 else "BadRequestError"
            raise errors.ApiError(message, status=trouble.status, kind=kind)
        value = self._body(exchange)
        ask, face = self._parse(exchange, value)
        self._check_model(ask.model)

        def tokenized() -> list[list[int]]:
            return encode(ask, self.config.tokenizer, self.config.engine.max_model_len)

        def begin(prompts: list[list[int]]) -> None:
            config = self.config
            outside = config.request_s + config.request_token_s * sum(map(len, prompts))
            if outside:
                asyncio.get_running_loop().call_later(outside, begin_late, prompts)
            else:
                self._begin(exchange, ask, prompts, face, number)

        def begin_late(prompts: list[list[int]]) -> None:
            if not exchange.closed:
                self._guarded(exchange, lambda _: self._begin(exchange, ask, prompts, face, number))

        number = self._requests
        if len(exchange.request.body) <= _INLINE:
            begin(tokenized())
            return
        future = asyncio.get_running_loop().run_in_executor(self._threads, tokenized)

        def ready(done: asyncio.Future[list[list[int]]]) -> None:
            if not done.cancelled() and not exchange.closed:
                self._guarded(exchange, lambda _: begin(done.result()))

        future.add_done_callback(ready)

    def _parse(self, exchange: Exchange, value: object) -> tuple[Ask, MakeFace]:
        """Return what a body asks for, and who encodes the answer, given its most tokens."""
        path, served, tools = exchange.request.path, self.config.model, self.config.takes_tools
        if path == responses.RESPONSES:
            ask, told = responses.parse_response(value, served)
            name = ask.request_id or f"resp_{uuid4().hex[:16]}"
            created = int(self._utc())
            return ask, lambda most: responses.ResponsesFace(name, created, served, told, most)
        if path == messages.MESSAGES:
            first = self.config.tokenizer.system_first
            ask = messages.parse_messages(value, served, system_first=first, takes_tools=tools)
        elif path == "/v1/chat/completions":
            ask = request.parse_chat(value, served, takes_tools=tools)
        else:
            ask = request.parse_completion(value)
        name = ask.request_id or exchange.request.header("x-request-id") or uuid4().hex[:16]
        name = f"chatcmpl-{name}" if ask.chat else f"cmpl-{name}"
        if path == messages.MESSAGES:
            return ask, lambda _: messages.MessagesFace(name, served)
        print_, created = self._fingerprint, int(self._utc())
        return ask, lambda _: Face(name, created, served, print_, chat=ask.chat)

    def _begin(
        self,
        exchange: Exchange,
        ask: Ask,
        prompts: list[list[int]],
        make_face: MakeFace,
        number: int,
    ) -> None:
        """Put a request into the engine."""
        trouble = self.faults.of_request(number)
        strands: list[Strand] = []
        for place, prompt in enumerate(prompts):
            for answer in range(ask.n):
                strand = self._strand(ask, prompt, place * ask.n + answer, answer, trouble)
                strands.append(strand)
        generation = Generation(
            ask,
            strands,
            exchange,
            face=make_face(strands[0].request.max_tokens),
            pod=self,
            trouble=trouble,
            on_end=self._live.discard,
        )
        self._live.add(generation)
        generation.begin(self._clock.now())

    def _strand(
        self, ask: Ask, prompt: list[int], index: int, number: int, trouble: Trouble
    ) -> Strand:
        """Return answer `number` to a prompt, as it goes into the engine."""
        config = self.config
        text = not ask.prompts_are_ids
        limit = config.engine.max_model_len
        echo_only = ask.echo and ask.max_tokens == 0
        most = 1 if echo_only else ask.max_tokens
        max_tokens = allowed_tokens(most, prompt, limit, text=text, name=ask.limited_by)
        key = answer_key(prompt, ask.cache_salt, ask.seed, number)
        end = None if ask.ignore_eos else natural_length(key)
        if end is not None and self._end_id is None:
            max_tokens, end = min(max_tokens, end), None
        answer = Answer(
            self._composer,
            key,
            after=self._after if ask.chat else After.WORD,
            end=end,
            end_id=self._end_id,
            degenerate=trouble.degenerate,
            echoed=self._echoed(prompt[:max_tokens]) if trouble.degenerate == "echo" else (),
        )
        ends = set(ask.stop_token_ids)
        if end is not None and self._end_id is not None:
            ends.add(self._end_id)
        self._sequences += 1
        return Strand(
            index=index,
            group=index // ask.n,
            request=EngineRequest(
                id=str(self._sequences),
                prompt_token_ids=prompt,
                max_tokens=max_tokens,
                next_token=answer.token,
                stop_token_ids=frozenset(ends),
                cache_salt=ask.cache_salt,
                keeps_blocks=ask.stream and trouble.pins,
            ),
            answer=answer,
            stops=StopText(ask.stop, include=ask.include_stop) if ask.stop else None,
            echo=self._echo(ask, index // ask.n),
            mute=echo_only,
        )

    def _echoed(self, tokens: Sequence[int]) -> list[tuple[int, str]]:
        """Return tokens of a prompt, and the text that each of them adds."""
        decoder = self.config.tokenizer.stream_decoder()
        return [(token, decoder.push(token)) for token in tokens]

    def _echo(self, ask: Ask, place: int) -> str:
        """Return what stands before an answer that echoes its prompt."""
        if not ask.echo or ask.return_token_ids or isinstance(ask.prompts, request.Conversation):
            return ""
        prompt = ask.prompts[place]
        return prompt if isinstance(prompt, str) else self.config.tokenizer.decode(prompt)

    def _check_model(self, name: str | None) -> None:
        """Refuse another model than the one that is served; none named is this one."""
        if name and name != self.config.model:
            raise errors.unknown_model(name, self.config.model)

    def _tokenize(self, exchange: Exchange) -> None:
        """Answer /tokenize."""
        body = request.parse_tokenize(self._body(exchange), self.config.model)
        self._check_model(body.model)
        tokenizer = self.config.tokenizer
        if body.conversation is not None:
            ids = encode_conversation(body.conversation, tokenizer)
        else:
            ids = encode_text(body.prompt, tokenizer, special=body.add_special_tokens)
        spellings = [tokenizer.token(i) for i in ids] if body.return_token_strs else None
        limit = self.config.engine.max_model_len
        self._json(
            exchange,
            {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": spellings},
        )

    def _count(self, exchange: Exchange) -> None:
        """Answer how many tokens a body of messages has."""
        tokenizer = self.config.tokenizer
        model, conversation = messages.parse_count(
            self._body(exchange),
            self.config.model,
            system_first=tokenizer.system_first,
            takes_tools=self.config.takes_tools,
        )
        self._check_model(model)
        count = len(encode_conversation(conversation, tokenizer))
        managed = {"original_input_tokens": count}
        self._json(exchange, {"input_tokens": count, "context_management": managed})

    def _detokenize(self, exchange: Exchange) -> None:
        """Answer /detokenize."""
        body = request.validate(request.DetokenizeBody, self._body(exchange))
        self._check_model(body.model)
        known = [i for i in body.tokens if i < self.config.tokenizer.vocab_size]
        text = self.config.tokenizer.decode(known, skip_special_tokens=False)
        self._json(exchange, {"prompt": text})

    # The rest.

    def _models(self, exchange: Exchange) -> None:
        """Answer /v1/models."""
        created = int(self._utc())
        permission = {
            "id": f"modelperm-{uuid4().hex[:16]}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self.config.model,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": str(self.config.tokenizer.path),
            "parent": None,
            "max_model_len": self.config.engine.max_model_len,
            "permission": [permission],
        }
        self._json(exchange, {"object": "list", "data": [model]})

    def _load(self, exchange: Exchange) -> None:
        """Answer /load: requests that are being answered."""
        self._json(exchange, {"server_load": len(self._live)})

    def _metrics(self, exchange: Exchange) -> None:
        """Answer a scrape."""
        exchange.respond(200, self.metrics.exposition(), CONTENT_TYPE, headers=(VARY,))

    def _reset(self, exchange: Exchange) -> None:
        """Forget the cache."""
        self._json(exchange, {"success": self._engine.reset_prefix_cache()})

    def _restart(self, exchange: Exchange) -> None:
        """Restart, and say so."""
        self.restart()
        self._json(exchange, {"restarted": True})

    def _tell_faults(self, exchange: Exchange) -> None:
        """Say which faults are on."""
        self._json(exchange, {"faults": [str(fault) for fault in self.faults.active]})

    def _set_faults(self, exchange: Exchange) -> None:
        """Replace the faults: `{"faults": ["cut:after=5"]}`; requests are counted anew."""
        body = request.validate(request.FaultsBody, self._body(exchange))
        self.faults = Faults(map(parse_fault, body.faults), self.config.seed)
        self._requests = 0
        self._tell_faults(exchange)


def _is_preflight(asked: Request) -> bool:
    """Return whether a browser asks if a page from elsewhere may ask."""
    return None not in {asked.header("origin"), asked.header("access-control-request-method")}


def _refuse_preflight(exchange: Exchange) -> None:
    """Say no to a browser, as vLLM does unless it was started with `--allowed-origins`.

    For any path, served or not.
    """
    asked = exchange.request
    wanted = asked.header("access-control-request-method")
    told = "Disallowed CORS origin" + ("" if wanted in _METHODS else ", method")
    headers = [
        (b"vary", _PREFLIGHT_VARIES),
        (b"access-control-allow-methods", ", ".join(_METHODS).encode()),
        (b"access-control-max-age", b"600"),
    ]
    if (names := asked.header("access-control-request-headers")) is not None:
        headers.append((b"access-control-allow-headers", names.encode("latin-1")))
    exchange.respond(400, told.encode(), "text/plain; charset=utf-8", headers=headers)


def _refuse_render(_: Exchange) -> None:
    """Refuse what vLLM refuses unless it is started for it."""
    raise errors.ApiError(
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable "
        "them.",
        status=403,
        kind="PermissionDeniedError",
    )


def _what_a_chat_ends_with(tokenizer: Tokenizer) -> After:
    """Return what stands before an answer under the tokenizer's chat template."""
    if not tokenizer.has_chat_template:
        return After.NOTHING
    try:
        text = tokenizer.render_chat([{"role": "user", "content": "x"}])
    except InputError:
        return After.NOTHING
    return After.LINE_BREAK if text.endswith("\n") else After.NOTHING


def _cache_config(config: PodConfig) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info` that a simulated pod has an answer for."""
    engine = config.engine
    tokens = engine.num_gpu_blocks * engine.block_size
    return {
        "_block_size_resolved": "True",
        "block_size": str(engine.block_size),
        "cache_dtype": "auto",
        "effective_attention_block_size": str(engine.block_size),
        "enable_prefix_caching": str(engine.enable_prefix_caching),
        "gpu_memory_utilization": "0.92",
        "is_attention_free": "False",
        "kv_cache_max_concurrency": str(tokens / engine.max_model_len),
        "kv_cache_size_tokens": str(tokens),
        "num_gpu_blocks": str(engine.num_gpu_blocks),
        "num_gpu_blocks_override": str(config.num_gpu_blocks_override),
        "prefix_caching_hash_algo": "sha256",
        "user_specified_block_size": "True",
    }
