"""Workers, how many local steps each takes, how updates are exchanged, and what a round costs."""
