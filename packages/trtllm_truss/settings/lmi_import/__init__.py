"""The configuration of an LMI container becomes ours.

`reading` takes options out of serving.properties and environment variables, `options` is the one
table of what each of them (an `option`) means here, `conversion` applies it.
"""
