"""Models that code builds: a function of the user's, or transformers' own class of a config.json.

builder.py       imports the builder, calls it, names the line that failed
built_model.py   BuiltModel, what a builder returned: its repeated layers, the class of a config.json, which modules tensor parallelism cuts
inspection.py    shape, plans and fingerprint of a built model
users_line.py    the line of the user's code that fails or runs
"""
