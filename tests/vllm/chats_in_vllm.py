"""Renders requests as an installed vLLM 0.32 does, without an engine; no GPU, no server.

Runs inside vLLM's Python: `python chats_in_vllm.py MODEL < bodies > ids`. MODEL is a directory with
a model's configuration and tokenizer. Each line of the input is `[template, path, body]`; each line
of the output that begins with `told:` is a prompt's token ids, or why the request is refused.
"""

import asyncio
import json
import sys

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.renderers.registry import renderer_from_config


def online_renderer(model):
    """Return what turns requests into prompts, as `vllm serve MODEL` with a tool parser has it."""
    config = AsyncEngineArgs(
        model=model, load_format="dummy", dtype="float32"
    ).create_engine_config()
    return OnlineRenderer(
        config.model_config,
        renderer_from_config(config),
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        enable_auto_tools=True,
        tool_parser="hermes",
    )


class Messages(AnthropicServingMessages):
    """What `/v1/messages` makes of a request, without its engine."""

    def __init__(self, renderer):
        self.model_config = renderer.model_config
        self.online_renderer = renderer
        self._merge_inline_system = self._should_merge_inline_system(renderer)
        self._disabled_thinking_effort = None

    async def converted(self, body):
        """Return the chat that a request stands for."""
        return self.to_chat_completion_request(
            AnthropicMessagesRequest.model_validate(body),
            merge_inline_system=self._merge_inline_system,
            disabled_thinking_effort=await self._get_disabled_thinking_effort(),
        )


async def main():
    """Render what comes."""
    renderer = online_renderer(sys.argv[1])
    messages = {}
    for line in sys.stdin:
        renderer.chat_template, path, body = json.loads(line)
        try:
            if path == "/v1/responses":
                made = await renderer.render_responses(ResponsesRequest.model_validate(body))
                told = getattr(made, "engine_input", {}).get("prompt_token_ids", repr(made))
            else:
                if path == "/v1/messages":
                    if renderer.chat_template not in messages:
                        messages[renderer.chat_template] = Messages(renderer)
                    chat = await messages[renderer.chat_template].converted(body)
                else:
                    chat = ChatCompletionRequest.model_validate(body)
                made = await renderer.render_chat(chat)
                told = made[1][0]["prompt_token_ids"] if isinstance(made, tuple) else repr(made)
        except Exception as error:  # noqa: BLE001 - a refusal, of whatever class
            told = f"{type(error).__name__}: {error}"
        sys.stdout.write(f"told: {json.dumps(told)}\n")
        sys.stdout.flush()


asyncio.run(main())
