"""Models that code builds: a function of the user's, or transformers' own class of a config.json.

built_model.py       BuiltModel, what a builder returned          builder.py       imports the builder, calls it, names the line that failed
transformers_class.py   the class of a config.json, random weights    inspection.py    shape, plans and fingerprint of a built model
fingerprint.py       digest of the code that built it             blocks.py        the repeated layers, and where they are
tensor_plan.py       which modules tensor parallelism cuts, by name    users_line.py    the line of the user's code that fails or runs
"""
