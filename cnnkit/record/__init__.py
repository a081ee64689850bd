"""What a run leaves behind: an append-only record, its settings, checkpoints, exports."""
