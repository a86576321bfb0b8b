"""The bytes of answers, as vLLM 0.32.0 lays them out: every key, in its order, nulls included.

A stream has one chunk for each token, so chunks are cut from a template: what is the same in all
chunks of an answer is encoded once. What a simulated answer says is ASCII letters, digits and
spaces, which are JSON as they are; only an echoed prompt has to be encoded.

What to notice in the originals: a chat begins with a chunk that has the role and no text, sent with
the first token and not before; the last chunk has text *and* finish reason; `stop_reason` stands
only there; the fingerprint stands in the very last chunk, which is the usage's where one was asked
for; the usage of a chat tells how many tokens were newly cached, that of completions does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kvbench.openai.sse import DONE
from kvbench.pod.errors import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request used.

    Attributes:
        prompt: Prompt tokens, of all prompts.
        completion: Generated tokens, of all answers.
        cached: Prompt tokens found in the cache; None where the pod does not tell.
        created: Prompt tokens newly cached.
    """

    prompt: int
    completion: int
    cached: int | None = None
    created: int = 0

    def counts(self) -> dict[str, object]:
        """Return the three counts, in vLLM's order."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
        }


@dataclass(frozen=True, slots=True)
class Finished:
    """One whole answer.

    Attributes:
        text: What it says.
        reason: Why it ended.
        stop: The text or token that ended it, where one was asked for.
        token_ids: Its tokens, where they were asked for.
        prompt_ids: Its prompt's, where they were asked for.
    """

    text: str
    reason: str
    stop: str | int | None
    token_ids: Sequence[int] | None
    prompt_ids: Sequence[int] | None


class AnyFace(Protocol):
    """Encodes the answers to one request, in whichever form; see `Face`.

    Attributes:
        opening: What a stream says before its first token.
        done: What it says behind its last.
        tells: Whether what was cached is told, whatever the pod was told to tell.
    """

    opening: bytes
    done: bytes
    tells: bool

    def piece(self, index: int, /) -> tuple[bytes, bytes]:
        """Return what stands around most texts; asked for where usage is told at the end only."""
        ...

    def chunk(
        self,
        index: int,
        text: str,
        /,
        *,
        reason: str | None = None,
        stop: str | int | None = None,
        token_ids: Sequence[int] | None = None,
        prompt_ids: Sequence[int] | None = None,
        usage: Usage | None = None,
        last: bool = False,
    ) -> bytes:
        """Return what is sent for a token."""
        ...

    def role(self, index: int, prompt_ids: Sequence[int] | None, usage: Usage | None, /) -> bytes:
        """Return what begins an answer, just before its first token."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """Return what ends a stream."""
        ...

    def whole(self, answers: Sequence[Finished], usage: Usage) -> bytes:
        """Return an answer in one piece."""
        ...


class Face:
    """Encodes the answers to one request for a chat or a completion.

    Args:
        request_id: Its id, with the prefix that the endpoint gives it.
        created: Calendar seconds.
        model: The served name.
        fingerprint: Of the server.
        chat: Which endpoint.
    """

    __slots__ = ("_chat", "_fingerprint", "_head", "_ident", "_open", "done", "opening", "tells")

    def __init__(
        self, request_id: str, created: int, model: str, fingerprint: str, *, chat: bool
    ) -> None:
        self.opening, self.done, self.tells = b"", DONE, False
        self._chat = chat
        self._fingerprint = fingerprint
        self._ident: dict[str, object] = {
            "id": request_id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        self._head = b"data: " + to_json(self._ident)[:-1] + b',"choices":['
        self._open = b'{"index":%d,"delta":{"content":"' if chat else b'{"index":%d,"text":"'

    def piece(self, index: int) -> tuple[bytes, bytes]:
        """Return what stands before and after the text in most chunks of answer `index`."""
        end = (
            b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
            if self._chat
            else b'","logprobs":null,"finish_reason":null,"stop_reason":null,'
            b'"prompt_token_ids":null,"token_ids":null}]}\n\n'
        )
        return self._head + self._open % index, end

    def chunk(
        self,
        index: int,
        text: str,
        *,
        reason: str | None = None,
        stop: str | int | None = None,
        token_ids: Sequence[int] | None = None,
        prompt_ids: Sequence[int] | None = None,
        usage: Usage | None = None,
        last: bool = False,
    ) -> bytes:
        """Return any chunk with text.

        Args:
            index: Which answer.
            text: What it adds.
            reason: Why the answer ends with it.
            stop: What ended it.
            token_ids: Its tokens, if they are told.
            prompt_ids: The prompt's, in the first chunk of a completion.
            usage: So far, if it is told with each chunk.
            last: Whether it ends its answer and no usage will follow: it has the fingerprint.
        """
        choice: dict[str, object] = {"index": index}
        if self._chat:
            choice |= {"delta": {"content": text}, "logprobs": None, "finish_reason": reason}
            if reason is not None:
                choice["stop_reason"] = stop
        else:
            choice |= {"text": text, "logprobs": None, "finish_reason": reason, "stop_reason": stop}
            choice["prompt_token_ids"] = prompt_ids
        choice["token_ids"] = token_ids
        body = {**self._ident, "choices": [choice]}
        if usage is not None:
            body["usage"] = self._running(usage)
        if last:
            body["system_fingerprint"] = self._fingerprint
        return b"data: " + to_json(body) + b"\n\n"

    def role(self, index: int, prompt_ids: Sequence[int] | None, usage: Usage | None) -> bytes:
        """Return the chunk that begins an answer of a chat."""
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        body = {**self._ident, "choices": [choice]}
        if usage is not None:
            body["usage"] = self._running(usage)
        body |= {"prompt_token_ids": prompt_ids, "prompt_text": None}
        return b"data: " + to_json(body) + b"\n\n"

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk that ends a stream with its usage."""
        counts = usage.counts()
        if usage.cached is not None:
            details = {"cached_tokens": usage.cached}
            if self._chat:
                details["created_cache_tokens"] = usage.created
            counts["prompt_tokens_details"] = details
        body = {**self._ident, "choices": [], "usage": counts}
        body["system_fingerprint"] = self._fingerprint
        return b"data: " + to_json(body) + b"\n\n"

    def whole(self, answers: Sequence[Finished], usage: Usage) -> bytes:
        """Return the body of an answer that does not come in pieces."""
        details = None
        if usage.cached is not None:
            details = {
                "cached_tokens": usage.cached,
                "created_cache_tokens": usage.created if self._chat else None,
                "multimodal_tokens": None,
            }
        counts = usage.counts() | {
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        }
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        body = {**self._ident, "choices": choices, "service_tier": None}
        body |= {"system_fingerprint": self._fingerprint, "usage": counts}
        if self._chat:
            body["object"] = "chat.completion"
            prompt_ids = answers[0].prompt_ids
            body |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
        body |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        return to_json(body)

    def _choice(self, index: int, answer: Finished) -> dict[str, object]:
        """Return one answer of a whole body."""
        ending = {"logprobs": None, "finish_reason": answer.reason, "stop_reason": answer.stop}
        ids = {"token_ids": answer.token_ids}
        if not self._chat:
            prompt = {"prompt_logprobs": None, "prompt_token_ids": answer.prompt_ids}
            tail = {"routed_experts": None}
            return {"index": index, "text": answer.text} | ending | ids | prompt | tail
        message = {
            "role": "assistant",
            "content": answer.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {"index": index, "message": message} | ending | ids | {"routed_experts": None}

    def _running(self, usage: Usage) -> dict[str, object]:
        """Return the usage that stands in chunks before the last."""
        counts = usage.counts()
        return counts | {"completion_tokens_details": None} if self._chat else counts
