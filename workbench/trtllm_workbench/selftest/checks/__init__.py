"""The checks: functions of a `Bench` that return `Held`, or raise `FellShort` or `CannotRun`."""
