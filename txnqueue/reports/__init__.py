"""What was and what is: history, snapshots, traces, proofs, metrics, views."""
