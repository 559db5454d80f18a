"""Running a planned build, behind the process guard.

`ensure_engine` is the whole as one call for serving: find a built engine or build one.
"""
