"""GRPO of a tiny model on arithmetic prompts, on CPU: a plain script of TRL."""

from dataclasses import dataclass, field

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer


@dataclass
class Script:
    hidden: int = field(default=64)


def tokenizer():
    words = ["<pad>", "<eos>", "<unk>", *"0123456789+=", *[f"w{i}" for i in range(100)]]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )


def reward(completions, **_):
    return [float(len(set(text.split()))) for text in completions]


def main():
    script, config = HfArgumentParser((Script, GRPOConfig)).parse_args_into_dataclasses()
    tokens = tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokens),
            hidden_size=script.hidden,
            intermediate_size=4 * script.hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=1,
        )
    )
    data = Dataset.from_dict({"prompt": [f"{i % 10} + {i % 7} =" for i in range(256)]})
    GRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=data, processing_class=tokens
    ).train()


if __name__ == "__main__":
    main()
