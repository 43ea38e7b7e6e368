"""Reports on the past and the present: history, snapshots, traces, proofs, metrics, views."""
