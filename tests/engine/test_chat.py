from __future__ import annotations

from datetime import datetime

import pytest

from engine.chat import ChatTemplate

ASK = [{"role": "user", "content": "a < b & 'c'"}]


def test_text_is_not_escaped_and_generation_is_prompted() -> None:
    template = ChatTemplate(
        "{{ bos_token }}\n{%- for m in messages %}\n  {% if m.role == 'user' %}\n[{{ m.content }}]{{ eos_token }}\n"
        "  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}>{% endif %}",
        bos_token="<s>",
        eos_token="</s>",
    )
    assert template.render(ASK) == "<s>[a < b & 'c']</s>\n>"


def test_helpers_that_published_templates_call() -> None:
    assert ChatTemplate("{{ messages | tojson }}").render(ASK) == '[{"role": "user", "content": "a < b & \'c\'"}]'
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(ASK) == str(datetime.now().year)
    assert ChatTemplate("{% for i in [1, 2] %}{{ i }}{% break %}{% endfor %}").render(ASK) == "1"


def test_a_template_that_refuses_is_reported() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="refuses these messages: roles must alternate"):
        template.render(ASK)


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ raise_exception.__globals__ }}"]
)
def test_templates_run_in_a_sandbox(source: str) -> None:
    with pytest.raises(ValueError, match="refuses these messages"):
        ChatTemplate(source + "{{ undefined.attribute }}").render(ASK)


def test_messages_need_role_and_content() -> None:
    template = ChatTemplate("")
    with pytest.raises(ValueError, match="needs `role` and `content`"):
        template.render([{"role": "user"}])
    with pytest.raises(ValueError, match="at least one message"):
        template.render([])
