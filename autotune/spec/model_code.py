"""The code that builds a model other than the built-in decoder: a user's function, or transformers'
own class for a config.json."""

from __future__ import annotations

from dataclasses import dataclass

MIN_OTHER_SHARE = 0.01
"""minimum fraction of the weights outside the language model at which they are treated as separate
parts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Repeated layers of one kind, counted in the module."""

    name: str
    """name of the kind: the classes of these layers, or of the submodules that distinguish these
    layers from other kinds"""
    count: int
    """number of layers of this kind"""
    parameters: int
    """weights of one layer, including its experts"""
    expert_parameters: int = 0
    """weights of one layer's routed experts; 0 without experts"""
    attends: bool = True
    """whether tokens in the layer attend to one another by scores (softmax attention); in
    state-space, linear and convolution layers they do not"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCode:
    """Specifies how to build an `nn.Module`. The fields are plain values, so that they can be sent
    to other processes and machines as JSON. The code runs where the model is built."""

    module: str = ""
    """the user's `package.module:function`; empty for the transformers class of `ModelSpec.source`,
    and for a model with only `num_parameters` known"""
    args: str = "{}"
    """keyword arguments of the function, as JSON text"""
    folder: str = ""
    """folder from which the module is imported (the spec's folder); empty if the module is
    installed"""
    num_parameters: int = 0
    """weight count of the built model; 0 if only its shape is known"""
    has_tensor_plan: bool = False
    """whether the model has a tensor-parallel plan"""
    has_pipeline_split: bool = False
    """whether the model defines its own split into pipeline stages"""
    has_attention: bool = True
    """whether the model's blocks have modules with attention in their name, which can be recomputed
    separately"""
    num_cuts: int = 0
    """number of split points: one less than the maximum number of pipeline stages"""
    guessed: tuple[str, ...] = ()
    """fields of `ModelSpec` that are in neither the module's config nor its `shapes`, so they are
    taken from a decoder with the same number of weights"""
    layers: tuple[LayerKind, ...] = ()
    """repeated layers by kind, if they differ from the built-in decoder's layers; each kind has the
    shape of a decoder layer with the same weights"""
    other_parameters: int = 0
    """weights outside the embedding, the layers and the output projection, such as a vision
    tower's"""
    reads_tokens: bool = True
    """whether the model is trained on tokens with cross entropy; false if the builder has its own
    input or loss"""
    takes: str = ""
    """the input of transformers' class in place of tokens, such as pixel_values; empty for
    tokens"""
    fingerprint: str = ""
    """digest of the code, its arguments and the versions of the packages that affect the built
    model"""

    @property
    def attending_share(self) -> float:
        """Fraction of layers with softmax attention, 0 to 1; 1 if layers were not counted by
        kind."""
        layers = sum(kind.count for kind in self.layers)
        return sum(kind.count for kind in self.layers if kind.attends) / layers if layers else 1.0

    @property
    def has_towers(self) -> bool:
        """Whether enough weights are outside the language model to be treated as separate parts."""
        return self.other_parameters > MIN_OTHER_SHARE * self.num_parameters
