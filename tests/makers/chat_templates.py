"""Chat templates that change earlier messages, as real ones do, for tests."""

# Like Qwen3.5's and 3.6's: the thinking before the last user message is dropped. A prompt ends in an open thinking
# block, or an empty one with enable_thinking=False.
DROPS_THINKING = r"""
{%- if tools or messages[0].role == 'system' -%}
<|im_start|>system
{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}
{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}<|im_end|>
{% endif %}
{%- set asked = namespace(at=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set asked.at = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or message.role == 'tool' -%}
<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% elif message.role == 'assistant' -%}
<|im_start|>assistant
{% if loop.index0 > asked.at -%}
<think>
{{ message.reasoning_content | default('') | trim }}
</think>

{% endif %}
{{- message.content | trim }}<|im_end|>
{% endif %}
{%- endfor -%}
{{- '<|im_start|>assistant\n' }}
{{- '<think>\n' }}
{{- '\n</think>\n\n' if enable_thinking is defined and not enable_thinking }}
"""

# Like Qwen3.8's: the thinking stays.
KEEPS_THINKING = DROPS_THINKING.replace("loop.index0 > asked.at", "true")

# Like Qwen3's: the model itself opens the thinking block.
OPENS_NOTHING = DROPS_THINKING[: DROPS_THINKING.rindex("{{- '<think>")]

# Contents unchanged, and no control token around them.
PLAIN = "{% for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}assistant:"

# No prompt begins with an earlier one.
DATED = "<|im_start|>system\nIt is {{ strftime_now('%H:%M:%S.%f') }}.<|im_end|>\n" + DROPS_THINKING

# Refuses a later turn, and another user message.
REFUSES_MORE = "{% if messages | length != 2 %}{{ raise_exception('two messages') }}{% endif %}" + DROPS_THINKING
