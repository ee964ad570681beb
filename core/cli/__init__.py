"""The command line, `python -m core …`: one module for each kind of verb."""
