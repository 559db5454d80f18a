"""The model repository that Triton loads, rendered from settings.

`schema` and `contract` hold the ``tensorrt_llm`` model as data, `parameters` and `repository` write
it, `native_models` adds the text models for clients of Triton itself.
"""
