"""Validation of guides (schemas, regular expressions, grammars) before an engine compiles them.

XGrammar compiles a guide inside the engine and cannot be interrupted there. `validator` therefore
first has a `compiler_worker` compile it, a program that forks a process with limits for each guide.
The engine supplies the compiler: `trtllm_backends.openvino_genai.grammar_compiler_worker` on the
CPU, itself for TensorRT-LLM. `guide` only reads the text.
"""
