"""LMI's body `{"inputs", "parameters", "stream"}`, which SageMaker and TGI clients send.

Written against the schema of DJL-Serving's LMI containers
(https://docs.djl.ai/master/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html)
and, for clients of Text Generation Inference, the types of huggingface_hub's `InferenceClient`.

`parameters` holds the fields, `body` reads them, `answers` writes answers and errors in either
shape, `adapter` is what an endpoint uses.
"""
