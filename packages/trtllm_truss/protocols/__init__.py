"""JSON in, requests out; pieces in, frames out. Pure: no network, no engine."""
