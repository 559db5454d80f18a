"""LMI's protocol, `{"inputs", "parameters", "stream"}`, for SageMaker and TGI clients.

Written against the schema of DJL-Serving's LMI containers
(https://docs.djl.ai/master/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html)
and, for clients of Text Generation Inference, the types of huggingface_hub's `InferenceClient`.

`parameters` defines the fields, `body` parses them, `adapter` encodes answers and errors for LMI
and TGI.
"""
