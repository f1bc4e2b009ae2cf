//! Wiring: the loop that owns the engine, supervision, shutdown.
