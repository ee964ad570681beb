"""The command line, `fedcon …`: one module for each kind of verb."""
