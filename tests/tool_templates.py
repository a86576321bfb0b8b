"""Chat templates that know tools, in the manners that models' templates have."""

TAGGED = """
{%- if tools %}
    {{- '<|system|>' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- '# Tools\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools>\nAnswer a call as {"name": …, "arguments": …}.<|end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|system|>' + messages[0].content + '<|end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.open and message.role == 'user' and not message.content.startswith('<answer>') %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|' + message.role + '|>' + message.content + '<|end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thoughts = message.reasoning_content or '' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|assistant|>' }}
        {%- if loop.index0 > ns.last and thoughts %}
            {{- '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<call>\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</call>' }}
        {%- endfor %}
        {{- '<|end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|user|>' }}
        {%- endif %}
        {{- '\n<answer>\n' + message.content + '\n</answer>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
"""Tools among the system's words, calls in tags, answers to them in a user's turn; thoughts of
earlier turns are left out. As Qwen and Hermes."""

HEADED = """
{{- bos_token }}
{%- if not date is defined %}{%- set date = '26 Jul 2024' %}{%- endif %}
{%- if not early is defined %}{%- set early = true %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|system|>system<|end|>\n\n' + ('Today: ' + date) + '\n' }}
{%- if tools is not none and not early %}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}
{%- endif %}
{{- system + '<|end|>' }}
{%- if early and not tools is none %}
    {%- if messages | length == 0 %}{{- raise_exception('nothing was asked') }}{%- endif %}
    {%- set first = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
    {{- '<|user|>user<|end|>\n\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}
    {{- first + '<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|user|>' + message['role'] + '<|end|>\n\n' + message['content'] | trim + '<|end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|assistant|>{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- '}<|end|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|user|>ipython<|end|>\n\n' }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>assistant<|end|>\n\n' }}{%- endif %}
"""
"""Tools before the first words of a user, one call at once, and a date. As Llama 3.1."""

BRACKETED = """
{{- bos_token }}
{%- set user = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- if tools is not none and message == user[-1] %}
            {{- '[TOOLS] [' }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.items() if key != 'return' %}
                    {%- if value is string %}{{- '"' + key + '": "' + value + '"' }}
                    {%- else %}{{- '"' + key + '": ' + value | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ', ' }}{%- endif %}
                {%- endfor %}
                {{- '}}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
            {%- endfor %}
            {{- '][/TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message['content'] + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}{{- out[:-1] }}
            {%- if not call.id is defined or call.id | length != 9 %}
                {{- raise_exception('an id has nine characters') }}
            {%- endif %}
            {{- ', "id": "' + call.id + '"}' }}
            {%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']<|end|>' }}{%- endif %}
        {%- endfor %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + '<|end|>' }}
    {%- elif message['role'] == 'tool' %}
        {{- '[RESULT] {"content": ' + message.content | string }}
        {{- ', "call_id": "' + message.tool_call_id + '"}[/RESULT]' }}
    {%- else %}
        {{- '[SYSTEM] ' + message['content'] + '[/SYSTEM]' }}
    {%- endif %}
{%- endfor %}
"""
"""Tools before the last words of a user, calls as JSON with their ids. As Mistral."""

PARTED = """
{%- macro say(told) %}
    {%- if told is string %}{{- told }}
    {%- else %}{%- for piece in told %}{{- piece.text if piece.type == 'text' }}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<|system|># Tools' }}
    {%- for tool in tools %}{{- '\n' + tool.function | tojson }}{%- endfor %}
    {{- '<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- set told = say(message.content) | trim %}
    {%- if message.role == 'tool' %}
        {{- '<|user|><answer to="' ~ message.name ~ '">' ~ told ~ '</answer><|end|>' }}
    {%- else %}
        {{- '<|' ~ message.role ~ '|>' }}
        {%- if message.reasoning %}{{- '<think>' + message.reasoning + '</think>' }}{%- endif %}
        {{- told }}
        {%- for call in message.tool_calls or [] %}
            {{- '<call ' ~ call.function.name ~ '>' }}
            {%- for name, value in call.function.arguments | items %}
                {{- '<' ~ name ~ '>' ~ (value if value is string else value | tojson) ~ '\n' }}
            {%- endfor %}
        {%- endfor %}
        {{- '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' ~ ('<think>' if enable_thinking | default(true) else '') }}
{%- endif %}
"""
"""Contents in parts, by a macro; arguments one by one, thoughts of every turn. As GLM, Gemma."""

PRINTING = """
{%- for message in messages %}{{- message | tojson }}{{- '<|end|>' }}{%- endfor %}
{{- tools | default('no') | tojson }}{{- documents | default('no') | tojson }}
{{- add_generation_prompt | tojson }}{{- enable_thinking | default('no') | tojson }}
"""
"""Whatever it is handed, in its order."""

ALL = {
    "tagged": TAGGED,
    "headed": HEADED,
    "bracketed": BRACKETED,
    "parted": PARTED,
    "printing": PRINTING,
}
"""By name."""
