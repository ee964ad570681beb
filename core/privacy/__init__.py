"""Attacks on the uploads of clients, and noise that bounds what they reveal."""
