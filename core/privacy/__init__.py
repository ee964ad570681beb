"""What leaks from what leaves a client, and how noise bounds it."""
