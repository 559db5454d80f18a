"""The check of guides (schemas, regular expressions, grammars) before an engine compiles them.

XGrammar compiles a guide inside the engine and cannot be interrupted there. `check` has the guide
compiled before that by a program, `trial`, which forks a process with limits for each guide. The
engine supplies the compiler: `backends.openvino_genai.grammar_compiler_worker` on the CPU,
`xgrammar_trial` for TensorRT-LLM. `size` and `misreading` read the text alone.
"""
