"""Readers of the current configuration of training programs, one per format. Each is the counterpart of what a trainer of the catalog writes.

deepspeed_json.py        ds_config.json
torchtitan_toml.py       torchtitan's job file (0.2)
torchtitan_python.py     torchtitan's Python configuration (0.3)
nanotron_yaml.py         nanotron's YAML
accelerate_yaml.py       the file of `accelerate config`
lightning_yaml.py        the configuration that LightningCLI reads
training_arguments.py    TrainingArguments of transformers, as JSON
megatron_flags.py        Megatron-LM's argument list: a shell script, a text file or a command
bridge_yaml.py           settings of Megatron-Bridge
trial_request.py         the native trainer's request
"""
