"""Models built by code: by a user's function, or by the transformers class of a config.json.

builder.py       imports and calls the user's function, and names the line that failed
built_model.py   BuiltModel, the result of a builder; repeated layers, transformers classes, tensor plans
inspection.py    shape, plans and fingerprint of a built model
users_line.py    finds the line of user code that failed or is running
"""
