"""Models of transformers as people have them, with a mask of two dimensions: fast, and exact for examples of any length."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privopt.perexample.networks import TorchGrads, TorchOracle, UnsupportedLayer
from privopt.perexample.networks.unsupported import SlowModel
from tests.perexample.networks.reference import assert_grads

tf = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WORDS, LENGTHS, PADDING = 40, (7, 3, 5, 1, 6), 1
SIZES: dict[str, Any] = {"vocab_size": WORDS, "pad_token_id": PADDING, "bos_token_id": 2, "eos_token_id": 2}
BERT = SIZES | {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
BERT["max_position_embeddings"] = 10
GPT2 = SIZES | {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 10, "use_cache": False}
DISTIL = SIZES | {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8, "max_position_embeddings": 10}
BART = SIZES | {"d_model": 8, "max_position_embeddings": 10, "use_cache": False, "decoder_start_token_id": 2}
for side in ("encoder", "decoder"):
    BART |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 8}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}


def prompted() -> Any:
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return peft.get_peft_model(tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2)), config)


MODELS: dict[str, Callable[[], Any]] = {
    "BERT": lambda: tf.BertForSequenceClassification(tf.BertConfig(**BERT)),
    "DistilBERT": lambda: tf.DistilBertForSequenceClassification(tf.DistilBertConfig(**DISTIL)),
    "ELECTRA": lambda: tf.ElectraForSequenceClassification(tf.ElectraConfig(embedding_size=4, **BERT)),
    "ALBERT": lambda: tf.AlbertForSequenceClassification(tf.AlbertConfig(embedding_size=4, **BERT)),
    "GPT-2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2)),
    "GPT-2 for classes": lambda: tf.GPT2ForSequenceClassification(tf.GPT2Config(**GPT2)),
    "BART": lambda: tf.BartForConditionalGeneration(tf.BartConfig(**BART)),
    "CLIP": lambda: tf.CLIPTextModelWithProjection(tf.CLIPTextConfig(projection_dim=4, **BERT)),
    "DeBERTa": lambda: tf.DebertaForSequenceClassification(tf.DebertaConfig(**RELATIVE, **BERT)),
    "Llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(use_cache=False, **BERT)),
    "prompt tuning": prompted,
}


class Outputs(nn.Module):
    """The first output of a model of transformers."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **inputs: Tensor) -> Tensor:
        found = self.inner(**inputs)
        first: Tensor = found.text_embeds if hasattr(found, "text_embeds") else found.logits
        return first


class Trimmed(nn.Module):
    """A mean over what is left, after padding that all examples of a batch share was cut off."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        kept = int(attention_mask.bool().any(0).sum())
        hidden = self.inner(input_ids=input_ids[:, :kept], attention_mask=attention_mask[:, :kept])
        mean: Tensor = hidden.last_hidden_state.mean(1)
        return mean


def data(*more: str) -> dict[str, Tensor]:
    """Examples of several lengths, padded."""
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    ids = torch.randint(5, WORDS, mask.shape, generator=torch.Generator().manual_seed(0))
    ids = torch.where(mask.bool(), ids, PADDING)
    return {"input_ids": ids, "attention_mask": mask} | dict.fromkeys(more, ids)


def weighted(output: Tensor, targets: Tensor) -> Tensor:
    rows = output.flatten(1)
    return (rows * torch.arange(1.0, rows.shape[1] + 1).cos().to(rows)).sum(1) * targets


@pytest.mark.parametrize("name", MODELS)
def test_models_with_a_mask_are_mapped_and_exact(name: str) -> None:
    torch.manual_seed(0)
    model = Outputs(MODELS[name]())
    inputs, targets = data(*(["decoder_input_ids"] if name == "BART" else [])), torch.linspace(1, 2, len(LENGTHS))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowModel)
        oracle = TorchOracle(model, weighted, inputs, targets)
    assert oracle.way == "mapped"
    model.eval()  # without dropout
    found = oracle(None, None)
    assert isinstance(found, TorchGrads)
    rows = []
    for i in range(len(targets)):
        own = {key: value[i : i + 1] for key, value in inputs.items()}
        parameters = list(oracle.layout.parameters.values())
        value = weighted(model(**own), targets[i : i + 1])[0]
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        pairs = zip(gradients, parameters, strict=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs]))
    assert_grads(found, torch.stack(rows).double())


def test_a_mask_that_is_used_to_trim_a_batch_is_found() -> None:
    torch.manual_seed(0)
    model = Trimmed(tf.BertModel(tf.BertConfig(**BERT), add_pooling_layer=False))
    with pytest.raises(UnsupportedLayer):
        TorchOracle(model, weighted, data(), torch.ones(len(LENGTHS)))


def test_transformers_is_left_as_it_was() -> None:
    from transformers.utils import import_utils

    before = import_utils.is_fake_tensor
    TorchOracle(Outputs(MODELS["BERT"]()), weighted, data(), torch.ones(len(LENGTHS)))
    assert import_utils.is_fake_tensor is before
