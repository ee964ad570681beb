"""`python -m core …` is `fedcon …`: the command line is the laboratory's."""

import runpy

runpy.run_module("lab", run_name="__main__")
