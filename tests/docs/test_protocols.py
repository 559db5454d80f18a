"""The pages in docs/ agree with the code on every field."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tools.docs.lmi import lmi_page
from tools.docs.messages import messages_page
from tools.docs.openai import openai_page

from trtllm_truss.protocols import lmi
from trtllm_truss.protocols.messages import body as messages
from trtllm_truss.protocols.openai import body
from trtllm_truss.protocols.openai.fields import SharedFields
from trtllm_truss.protocols.predict import PredictBody
from trtllm_truss.protocols.responses import body as responses
from trtllm_workbench.importers.lmi import OPTIONS


def test_every_field_of_predict_has_a_description() -> None:
    assert all(field.description for field in PredictBody.model_fields.values())


@pytest.mark.parametrize(
    ("fields", "others"),
    [
        (body.ChatFields, {**body.CHAT_REFUSED, **body.CHAT_UNUSED}),
        (body.CompletionFields, {**body.COMPLETION_REFUSED, **body.COMPLETION_UNUSED}),
        (responses.ResponsesFields, {**responses.REFUSED, **responses.UNUSED}),
    ],
    ids=["chat", "completions", "responses"],
)
def test_every_field_of_openai_is_there(
    fields: type[SharedFields], others: Mapping[str, object]
) -> None:
    page = openai_page()
    for name, field in fields.model_fields.items():
        assert field.description, name
        assert f"\n| `{name}` |" in page
    for name in others:
        assert f"\n| `{name}` |" in page


def test_every_field_of_anthropic_is_there() -> None:
    page = messages_page()
    for name, field in messages.MessagesFields.model_fields.items():
        assert field.description, name
    for name in (*messages.MessagesFields.model_fields, *messages.REFUSED, *messages.UNUSED):
        assert f"\n| `{name}` |" in page


def test_every_parameter_and_option_of_lmi_is_there() -> None:
    page = lmi_page()
    named = (*lmi.Parameters.model_fields, *lmi.ALIASES, *lmi.UNSUPPORTED)
    for name in (*named, *OPTIONS):
        assert f"\n| `{name}` |" in page
