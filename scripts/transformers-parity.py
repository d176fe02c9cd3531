#!/usr/bin/env python3
"""Checks that models of the Hugging Face hub compute, train, export and generate in Stageline as in transformers.

    cargo build --features models --example finetune --example bert
    python3 scripts/transformers-parity.py [--program target/debug/examples/finetune] [--only gpt2,llama-tied]

transformers makes small models of every supported family with random values, also in norms and biases. For each model the
script checks, with a bound for every figure:

- logits of 1, 2 and 3 stages, from one file and from shards, in f32, bf16 and f16; the stages must not change a bit
- the export of an untrained model, which must have the same files, tensors and types, and must load without complaints
- 50 steps of AdamW with clipping, warm-up, a cosine and weight decay against a plain loop in PyTorch: loss and gradient norm
  of every step, and the exported parameters; for tied models also that three plans export the same bytes. The loop runs in
  f64 as well, so the row shows how far PyTorch and Stageline are from it; PyTorch must be near it
- the same training on separate documents (`--documents separate`), for a GPT-2 and a Llama. In PyTorch, position_ids restart at
  each document, the attention mask has a block for each document, and first tokens of documents have the label -100
- 50 steps on completions and on answers of conversations, several documents in a sample, for the same models. PyTorch trains on
  each document in a row of its own, whose other tokens have the label -100, and transformers writes the conversations
- LoRA adapters of PEFT: logits, 50 steps, the exported adapters, and the model that has them merged; new adapters, which must
  load into PEFT
- frozen parameters, which must keep their bits while all others change
- greedy generation of 1, 2 and 3 stages, which must give the tokens of `tokenizer()` and `generate`
- logits of models with a config.json that transformers reads but does not write
- 50 steps of the example `bert`, a model of its own that takes its weights from PyTorch, against the same loop in PyTorch, and
  the exports of three plans
- logits and the export of folders as the hub has them, with other names, types and buffers than transformers writes today, and
  greedy generation with several end tokens and with a repetition penalty in generation_config.json

`--only smollm2-135m` checks a model of 135 million parameters: logits, the export, and 50 steps at the rate of a fine-tuning. It
takes 20 minutes and 8 GB of memory, so it is not among the other checks. Build the program with `--release` for it, and add
`--program target/release/examples/finetune`.

Needs torch, transformers and peft. If this interpreter lacks them, the script installs them into target/transformers, with the CPU
build of torch where its index can be reached. Prints a row for every check, and exits with 1 if a bound is broken.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / "target/transformers"
IMPORTS = "import peft, safetensors.torch, tokenizers, torch, transformers"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def restart_with_packages():
    """Restarts the script with the interpreter of target/transformers, into which it installs what is missing."""
    python = ENVIRONMENT / "bin/python"
    if Path(sys.prefix).resolve() == ENVIRONMENT.resolve():
        sys.exit(f"{ENVIRONMENT} lacks a package; delete the folder and try again")
    if not python.exists() or subprocess.run([python, "-c", IMPORTS], capture_output=True).returncode != 0:
        print(f"installing torch, transformers and peft into {ENVIRONMENT}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        install = [python, "-m", "pip", "install", "-q"]
        torch_for_cpu = [*install, "--retries", "0", "--index-url", CPU_INDEX, "torch==2.15.0"]
        if subprocess.run(torch_for_cpu, capture_output=True).returncode != 0:
            subprocess.run([*install, "torch==2.15.0"], check=True)
        subprocess.run([*install, "transformers==5.23.0", "peft==0.21.2"], check=True)
    os.execv(python, [python, __file__, *sys.argv[1:]])


try:
    import peft
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from torch.overrides import TorchFunctionMode
except ImportError:
    restart_with_packages()

sys.path.append(str(ROOT / "crates/stageline-data/tests"))
import chacha8  # noqa: E402 (the script restarts before this line if packages are missing)
from checks import Table, flags  # noqa: E402

VOCABULARY, LAYERS, POSITIONS = 301, 5, 61
STEPS, BATCH, WARM_UP, PEAK = 50, 6, 5, 1e-3
NEW_TOKENS = 20
# The largest difference of logits, as a share of the largest logit: in f32, and between types of 16 bits and f32.
EXACT, ROUNDED = 1e-5, 2e-2
# The largest relative differences of a loss and of a gradient norm, and the largest difference of a parameter. Those of the
# norm and of parameters are about three times what was measured with torch 2.15.0 on AVX2.
BOUNDS = (1e-6, 3e-5, 6e-5)
# The standard deviation of the values of a model that is trained, and smaller ones for the models that would amplify rounding
# with it, so that PyTorch in f32 itself would be as far from f64 as the bounds allow Stageline to be from PyTorch.
DEVIATION, DEVIATIONS = 0.1, {"llama3-rope": 0.03, "qwen3-window": 0.06, "llama-padding": 0.06}
# The largest distances of PyTorch's training in f32 from that in f64. With a larger one, f64 is no measure of the error.
FROM_F64 = (1e-5, 1e-3, 1e-4)
# Dtype, whether the folder has shards, and the length of the rows.
VARIANTS = [
    (torch.float32, False, 17), (torch.float32, True, 33), (torch.bfloat16, True, 17), (torch.float16, False, 33),
]


def gpt2(**settings):
    return transformers.GPT2Config(**{
        "vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_layer": LAYERS, "n_embd": 35, "n_head": 5, "n_inner": 71,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None, **settings,
    })


def llama(kind=transformers.LlamaConfig, **settings):
    return kind(**{
        "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "num_hidden_layers": LAYERS, "hidden_size": 36,
        "intermediate_size": 53, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 6,
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None, "rms_norm_eps": 1e-5, **settings,
    })


# With these settings the pairs of a head of 12 elements have frequencies that stay, that are interpolated, and that are
# divided: the waves of a pair in the original length are 10.2, 2.2, 0.5 and fewer.
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "gpt2": lambda: gpt2(),
    "gpt2-untied": lambda: gpt2(tie_word_embeddings=False),
    "gpt2-gelu": lambda: gpt2(activation_function="gelu"),
    "llama": lambda: llama(),
    "llama-tied": lambda: llama(tie_word_embeddings=True),
    "llama-one-key": lambda: llama(num_key_value_heads=1),
    "llama-biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama3-rope": lambda: llama(head_dim=12, hidden_size=72, rope_parameters=LLAMA3, max_position_embeddings=512),
    "llama-head-size": lambda: llama(hidden_size=39, num_attention_heads=3, num_key_value_heads=3, head_dim=10),
    "qwen2": lambda: llama(transformers.Qwen2Config),
    "qwen2-window": lambda: llama(
        transformers.Qwen2Config, use_sliding_window=True, sliding_window=9, max_window_layers=2, tie_word_embeddings=True
    ),
    "qwen3": lambda: llama(transformers.Qwen3Config, num_key_value_heads=3, head_dim=8),
    "mistral-window": lambda: llama(transformers.MistralConfig, sliding_window=7),
    # A model's values come from its place in this list, so new models are at the end.
    "llama3-beyond": lambda: llama(
        head_dim=12, rope_parameters=LLAMA3, max_position_embeddings=512, tie_word_embeddings=True
    ),
    "llama-odd": lambda: llama(
        hidden_size=35, intermediate_size=71, num_attention_heads=5, num_key_value_heads=5, head_dim=2
    ),
    "gpt2-odd": lambda: gpt2(n_embd=45, n_head=9, n_inner=1),
    "mistral-beyond": lambda: llama(
        transformers.MistralConfig, sliding_window=32, max_position_embeddings=512, num_key_value_heads=1,
        tie_word_embeddings=True,
    ),
    "mistral-no-window": lambda: llama(transformers.MistralConfig, sliding_window=None),
    "qwen2-tied": lambda: llama(transformers.Qwen2Config, tie_word_embeddings=True),
    "qwen3-tied": lambda: llama(transformers.Qwen3Config, head_dim=8, tie_word_embeddings=True),
    "qwen3-window": lambda: llama(
        transformers.Qwen3Config, use_sliding_window=True, sliding_window=9, max_window_layers=2, num_key_value_heads=1
    ),
    # The padding token occurs in the rows, and transformers does not train its embedding by look-ups.
    "llama-padding": lambda: llama(pad_token_id=5),
    "qwen2-padding-tied": lambda: llama(transformers.Qwen2Config, pad_token_id=0, tie_word_embeddings=True),
}
# Configurations that transformers reads but does not write: a model of MODELS, and the fields that its config.json gets. A field
# with REMOVED is taken out.
REMOVED = object()
LAYER_TYPES = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
CONFIGURATIONS = {
    "rope-empty-scaling": ("llama3-rope", {"rope_scaling": {}}),
    "rope-scaling-first": (
        "llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 100.0}}
    ),
    "rope-theta-at-top": (
        "llama", {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 7.0}, "rope_theta": 100.0}
    ),
    "rope-theta-in-scaling": ("llama", {"rope_scaling": {"rope_theta": 100.0}, "rope_theta": 7.0}),
    "rope-original-at-top": ("llama3-rope", {"original_max_position_embeddings": 16}),
    "rope-original-missing": (
        "llama3-rope",
        {"rope_parameters": {key: value for key, value in LLAMA3.items() if not key.startswith("original")}},
    ),
    "causal-true": ("qwen2", {"is_causal": True, "quantization_config": None}),
    "qwen2-layer-types": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "layer_types": LAYER_TYPES}),
    "qwen3-layer-types": ("qwen3", {"use_sliding_window": True, "sliding_window": 9, "layer_types": LAYER_TYPES}),
    "mistral-layer-types": ("mistral-window", {"layer_types": LAYER_TYPES}),
    "gpt2-names": ("gpt2", {
        "n_embd": REMOVED, "n_layer": REMOVED, "n_head": REMOVED, "n_positions": REMOVED, "hidden_size": 35,
        "num_hidden_layers": LAYERS, "num_attention_heads": 5, "max_position_embeddings": POSITIONS,
    }),
}


def without_root_with_masks(tensors, config):
    """Gives the tensors of a GPT-2 the names of openai-community/gpt2, which has no `transformer.` but the causal masks."""
    for name in list(tensors):
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)
    for layer in range(LAYERS):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(POSITIONS, POSITIONS).tril()[None, None]


def with_obsolete_masks(tensors, config):
    """Adds a buffer of older GPT-2 folders that transformers reports as unexpected."""
    for layer in range(LAYERS):
        tensors[f"transformer.h.{layer}{OBSOLETE}"] = torch.tensor(-1e4)


def with_frequencies(tensors, config):
    """Adds the frequencies of the rotary embedding, which folders of early Llamas have in every layer."""
    for layer in range(LAYERS):
        frequencies = 1e4 ** (-torch.arange(0, config["head_dim"], 2) / config["head_dim"])
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = frequencies


def with_scaling_beside_theta(tensors, config):
    """Writes the rotary embedding as Llama 3.2 has it: `rope_theta` at the top level, and `rope_scaling` of the type llama3."""
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}


def with_copy_of_table(tensors, config):
    """Adds the tied head of a Qwen3 as a second copy of the table."""
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


def with_table_in_head(tensors, config):
    """Leaves only the head of a tied model, which then has the table."""
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")


def with_former_type(tensors, config):
    """Names the data type as transformers did before version 5."""
    config["torch_dtype"] = config.pop("dtype")


# Folders as the hub has them: a model of MODELS, and what changes its tensors and its config.json.
FOLDERS = {
    "hub-gpt2": ("gpt2", without_root_with_masks),
    "hub-llama3-rope": ("llama3-beyond", with_scaling_beside_theta),
    "hub-llama-frequencies": ("llama", with_frequencies),
    "hub-qwen3-copy": ("qwen3-tied", with_copy_of_table),
    "hub-llama-head": ("llama-tied", with_table_in_head),
    "hub-torch-dtype": ("qwen2-tied", with_former_type),
    "hub-gpt2-obsolete": ("gpt2", with_obsolete_masks),
}
# The end of the names of tensors that transformers would report as unexpected, so that an export leaves them out.
OBSOLETE = ".attn.masked_bias"
# A model with the shape of SmolLM2-135M and the values with which transformers begins a training.
LARGE = {"smollm2-135m": lambda: llama(
    vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True, initializer_range=1 / 24,
    rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
)}
# Greedy generations with settings of the model's folder, each with its model: several end tokens or a penalty in
# generation_config.json, and a penalty in the config.json of an older folder.
GENERATIONS = {"generation-ends": "llama-tied", "generation-penalty": "qwen2-tied", "generation-old-penalty": "gpt2"}
# Models whose rows are longer than the context before scaling, or than the window: 69 or 133 tokens instead of 17 or 33.
BEYOND = {"llama3-beyond", "mistral-beyond"}
# A model that the example `bert` makes of its own layers.
OWN = {"bert": lambda: transformers.BertConfig(
    vocab_size=VOCABULARY, hidden_size=36, num_hidden_layers=LAYERS, num_attention_heads=6, intermediate_size=53,
    max_position_embeddings=POSITIONS, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)}
# Models that are also trained on separate documents, and the samples of these trainings: the number of documents, the largest
# number of tokens in a document, the number of tokens in a sample's input, and the seed from which samples are drawn.
PACKED = {"gpt2", "llama"}
DOCUMENTS, LONGEST, CONTEXT, SEED = 60, 25, 40, 5
# Models that are also trained by LoRA adapters, and the settings of the adapters in PEFT. `c_proj` of GPT-2 is two layers.
ADAPTED = {
    "gpt2": {"r": 3, "lora_alpha": 5, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    "llama": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "qwen2": {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
}


class Finetune:
    """The program under test, which may run for `timeout` seconds."""

    def __init__(self, program, timeout=120):
        self.program, self.timeout = program, timeout

    def __call__(self, **settings):
        """Runs the program and returns what it prints; raises RuntimeError if it fails."""
        command = [str(self.program), *flags(settings)]
        cache = str(settings["model"].parent / "cache")  # token files are not kept for other runs
        environment = {**os.environ, "RUST_BACKTRACE": "0", "XDG_CACHE_HOME": cache}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout, env=environment)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{' '.join(command)} ran longer than {self.timeout} s") from error
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
        return done.stdout


# The token that the tokenizer of every model adds before a text.
START = 1


def save(name, folder, dtype=torch.float32, shards=False, deviation=DEVIATION):
    """Writes a model with random values, and a tokenizer with one word a token and the token START before a text."""
    torch.manual_seed(1000 + [*MODELS, *OWN].index(name))
    own = OWN.get(name)
    kind = transformers.AutoModelForSequenceClassification if own else transformers.AutoModelForCausalLM
    model = kind.from_config((own or MODELS[name])())
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            is_gain = parameter.ndim == 1 and not path.endswith("bias")
            parameter.normal_(1.0 if is_gain else 0.0, deviation)
    model.to(dtype).save_pretrained(folder, max_shard_size="30KB" if shards else "1GB")
    assert len(weights(folder)) > 3 if shards else len(weights(folder)) == 1, f"{folder}: {weights(folder)}"
    words = {f"w{token}": token for token in range(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    start = f"w{START}"
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, START)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def load(folder, kind=transformers.AutoModelForCausalLM):
    """Loads a model without dropout, with the attention whose formula is written out."""
    return kind.from_pretrained(folder, dtype="auto", attn_implementation="eager").eval()


def length_of(name, length):
    """Returns the length of a model's rows; `length` is that of most models."""
    return 4 * length + 1 if name in BEYOND else length


def token_rows(path, count, length, seed, vocabulary=VOCABULARY):
    """Writes rows of random tokens, and returns them."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, vocabulary, (count, length), generator=random)
    path.write_text(json.dumps(rows.tolist()))
    return rows


def weights(folder):
    """Returns the names of the files with weights and their index."""
    return sorted(path.name for path in folder.iterdir() if ".safetensors" in path.name)


def tensors(folder):
    """Returns the tensors of all files of a folder by name."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def has_same_bits(left, right):
    """Returns whether two tensors have the same type, shape and bits."""
    as_bytes = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (left, right)]
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*as_bytes)


def difference_of_export(source, export):
    """Returns what differs between a model's folder and its export: the files, a tensor, or the load; "" if nothing."""
    files = sorted(path.name for path in source.iterdir())
    if files != sorted(path.name for path in export.iterdir()):
        return "other files"
    for name in files:
        if name.endswith(".safetensors"):
            ours, theirs = load_file(export / name), load_file(source / name)
            theirs = {key: tensor for key, tensor in theirs.items() if not key.endswith(OBSOLETE)}
            if ours.keys() != theirs.keys() or not all(has_same_bits(ours[key], theirs[key]) for key in ours):
                return f"other tensors in {name}"
        elif name == "model.safetensors.index.json":
            maps = [json.loads((folder / name).read_text())["weight_map"] for folder in (source, export)]
            if maps[0] != maps[1]:
                return f"other names in {name}"
        elif (source / name).read_bytes() != (export / name).read_bytes():
            return f"another {name}"
    _, info = transformers.AutoModelForCausalLM.from_pretrained(export, dtype="auto", output_loading_info=True)
    return ", ".join(f"{kind}: {sorted(keys)}" for kind, keys in info.items() if keys)


def compare_values(table, what, ours, theirs, bound=EXACT):
    """Adds a row with the largest difference of logits, as a share of the largest logit."""
    difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    passed = ours.shape == theirs.shape and difference <= bound
    table.row(what, f"{difference:.1e}", f"{bound:.0e}", passed)


def compare_logits(table, finetune, name, variant, folder):
    """Compares logits, the export of the untrained model, and (of the first variant) greedy generation."""
    dtype, shards, length = variant
    length = length_of(name, length)
    source, is_first = folder / "source", variant == VARIANTS[0]
    source.mkdir(parents=True)
    case = f"{name}, {str(dtype).removeprefix('torch.')}, {'shards' if shards else 'one file'}, {length} tokens"
    # Larger weights give more different tokens, but in types of 16 bits PyTorch itself is then less exact.
    save(name, source, dtype, shards, deviation=0.2 if dtype == torch.float32 else 0.05)
    rows, model = token_rows(folder / "rows.json", 5, length, seed=1), load(source)
    words = " ".join(f"w{token}" for token in rows[0, :11].tolist())
    text = {"prompt": words, "temperature": 0, "new_tokens": NEW_TOKENS} if is_first else {}

    def with_stages(stages):
        out, export = folder / f"logits-{stages}.safetensors", folder / f"export-{stages}"
        printed = finetune(
            model=source, steps=0, stages=stages, logits=folder / "rows.json", out=out, export=export, **text
        )
        return load_file(out)["logits"], printed.strip().splitlines()[-1]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(with_stages, (1, 2, 3)))
    ours = found[0][0]
    with torch.no_grad():
        expected = {"": model(rows).logits.float()}
        if dtype != torch.float32:
            expected[" in f32 of the same values"] = model.float()(rows).logits
    for which, theirs in expected.items():
        bound = EXACT if which or dtype == torch.float32 else ROUNDED
        compare_values(table, f"{case}: logits{which}", ours, theirs, bound)
    wrong = {difference_of_export(source, folder / f"export-{stages}") for stages in (1, 2, 3)} - {""}
    if not all(has_same_bits(ours, logits) for logits, _ in found):
        wrong.add("logits of other numbers of stages")
    table.row(f"{case}: differences of bits", "; ".join(sorted(wrong)) or "none", "none", not wrong)
    if is_first:
        compare_text(table, name, model, (source, words), [line for _, line in found])


def compare_text(table, name, model, prompt, lines):
    """Compares the words that each number of stages has printed with those of `tokenizer()` and `generate`."""
    source, words = prompt
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"))
    prompt = tokenizer(words, return_tensors="pt").input_ids
    if prompt.tolist()[0] != [START, *(int(word[1:]) for word in words.split())]:
        raise RuntimeError(f"the tokenizer of transformers gives {prompt.tolist()} for {words}")
    made = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0,
        output_logits=True, return_dict_in_generate=True,
    )
    best = torch.cat(made.logits).topk(2).values
    margin = ((best[:, 0] - best[:, 1]) / best[:, 0].abs()).min().item()
    new = [f"w{token}" for token in made.sequences[0, prompt.shape[1] :].tolist()]
    same = sum(line.split() == words.split() + new for line in lines)
    found = f"{same} of 3, {len(set(new))} different tokens, margin {margin:.1e}"
    passed = same == 3 and len(new) == NEW_TOKENS and margin > 10 * EXACT
    table.row(f"{name}: greedy tokens of generate", found, f"3 of 3, margin {10 * EXACT:.0e}", passed)


def learning_rate(step, peak):
    """Returns the learning rate of a step: a linear warm-up to `peak`, and a cosine down to a tenth of it."""
    if step < WARM_UP:
        return peak * (step + 1) / (WARM_UP + 1)
    share = (step - WARM_UP) / (STEPS - WARM_UP)
    return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2)


class InF64(TorchFunctionMode):
    """Computes in f64 what the models of transformers compute in f32 for parameters of any type: norms, softmax, angles."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def wide(value):
            return torch.float64 if value is torch.float32 else value

        function = torch.Tensor.double if function is torch.Tensor.float else function
        return function(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


class LanguageBatches:
    """Batches for a language model: the input of a step, its labels, and the starts of documents or None."""

    kind = transformers.AutoModelForCausalLM

    def model(self, source):
        """Returns the model of PyTorch's training, and a function that returns its trained tensors by name."""
        model = load(source, self.kind)
        return model, model.state_dict

    @staticmethod
    def loss(model, tokens, labels, begins):
        logits = model(tokens, use_cache=False, **kept_apart(begins, model.dtype)).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())  # leaves out labels of -100


class Rows(LanguageBatches):
    """Batches of rows of tokens, which are taken in their order, and the largest learning rate of a training on them."""

    def __init__(self, rows, samples=BATCH, peak=PEAK):
        self.rows, self.samples, self.peak = rows, samples, peak

    def batch(self, step):
        """Returns the input of a step, its labels, and None, because rows have no documents."""
        first = step * self.samples
        batch = self.rows[[at % len(self.rows) for at in range(first, first + self.samples)]]
        return batch[:, :-1], batch[:, 1:], None


def of_step(step, samples):
    """Returns the samples of a step, each of which comes once an epoch, in the order of stageline-data."""
    places = [divmod(place, samples) for place in range(step * BATCH, (step + 1) * BATCH)]
    return [order(epoch, samples)[place] for epoch, place in places]


def order(epoch, samples):
    """Returns the order of an epoch: a shuffle of Fisher and Yates, from the last place to the second."""
    order = list(range(samples))
    draws = chacha8.draws(SEED, b"stageline epochs", epoch, samples - 1)
    for last, bits in zip(range(samples - 1, 0, -1), draws):
        other = bits * (last + 1) >> 64
        order[last], order[other] = order[other], order[last]
    return order


class Packed(LanguageBatches):
    """Batches of windows of a text, in which several documents share a sample, and each is trained on as if it were alone."""

    peak = PEAK

    def __init__(self, path):
        """Writes the documents as JSON lines of random words, each of which is one token of the tokenizer of `save`. Its token
        START is before each document."""
        random = torch.Generator().manual_seed(4)
        lengths = torch.randint(1, LONGEST + 1, (DOCUMENTS,), generator=random).tolist()
        documents = [torch.randint(0, VOCABULARY, (length,), generator=random) for length in lengths]
        texts = [" ".join(f"w{token}" for token in document.tolist()) for document in documents]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        documents = [torch.cat([torch.tensor([START]), document]) for document in documents]
        lengths = [len(document) for document in documents]
        self.tokens = torch.cat(documents)
        ends = torch.tensor(lengths).cumsum(0)
        # For every token of the text, the position at which its document begins.
        self.begins = torch.cat([torch.full((length,), end - length) for length, end in zip(lengths, ends.tolist())])

    def batch(self, step):
        """Returns the input of a step, its labels, and for every token of the input the position in its sample at which its
        document begins. The windows lie side by side."""
        windows = of_step(step, (len(self.tokens) - 1) // CONTEXT)
        at = torch.tensor(windows)[:, None] * CONTEXT + torch.arange(CONTEXT + 1)
        is_first = self.begins[at] == at
        labels = torch.where(is_first, -100, self.tokens[at])[:, 1:]
        begins = (self.begins[at] - at[:, :1]).clamp(min=0)
        return self.tokens[at][:, :-1], labels, begins[:, :-1]


class Answers(LanguageBatches):
    """All documents of a training on completions and answers, each in a row of its own. Every step trains on all of them, so
    their order and their packing make no difference."""

    peak = PEAK
    # Long and short documents, of which each pair fills a sample of CONTEXT tokens: the length of the prompt and of the rest.
    LENGTHS = [*((3, CONTEXT - 7 - at) for at in range(BATCH)), (2, 1), (1, 1), (2, 3), (2, 2), (2, 5), (2, 4)]
    TEMPLATE = (
        "{%- for message in messages -%}{%- if message.role == 'assistant' -%}w2 {% generation -%}{{ message.content + ' w3 ' }}"
        "{%- endgeneration -%}{%- else -%}{{ 'w4 ' + message.content + ' ' }}{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}w2 {% endif -%}"
    )

    def __init__(self, source, path):
        """Writes the documents as JSON lines to `path`, in turn completions and conversations, and a chat template to the
        model's folder `source`."""
        (source / "chat_template.jinja").write_text(self.TEMPLATE)
        reader = transformers.PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"))
        reader.chat_template = self.TEMPLATE
        random = torch.Generator().manual_seed(8)
        rows, labels, lines = [], [], []
        for at, (before, after) in enumerate(self.LENGTHS):
            words = [f"w{token}" for token in torch.randint(5, VOCABULARY, (before + after,), generator=random).tolist()]
            prompt, completion = " ".join(words[:before]), " ".join(words[before:])
            if at % 2 == 0:
                lines.append({"prompt": prompt, "completion": " " + completion})
                tokens = [START, *reader.convert_tokens_to_ids(words)]
                trained = [0] * (before + 1) + [1] * after
            else:
                messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
                lines.append({"messages": messages})
                found = reader.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
                tokens, trained = found["input_ids"], found["assistant_masks"]
            padding = [0] * (CONTEXT + 1 - len(tokens))
            rows.append(tokens + padding)
            labels.append([token if is_trained else -100 for token, is_trained in zip(tokens, trained)] + [-100] * len(padding))
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.rows, self.labels = torch.tensor(rows), torch.tensor(labels)

    def batch(self, step):
        """Returns the input of every step, its labels, and None, because each document has a row of its own."""
        return self.rows[:, :-1], self.labels[:, 1:], None


class Adapted(Rows):
    """Batches of rows for a model with the LoRA adapters in the folder `adapter`, which alone are trained."""

    def __init__(self, rows, adapter):
        super().__init__(rows)
        self.adapter = adapter

    def model(self, source):
        model = peft.PeftModel.from_pretrained(load(source), self.adapter, is_trainable=True)
        return model, lambda: peft.get_peft_model_state_dict(model)


class Texts:
    """Batches of texts of different lengths with the numbers of their classes."""

    kind, peak = transformers.AutoModelForSequenceClassification, PEAK
    model = LanguageBatches.model

    def __init__(self, path, count=37):
        """Writes JSON lines of random words. Texts longer than CONTEXT lose their ends."""
        random = torch.Generator().manual_seed(6)
        lengths = torch.randint(1, CONTEXT + 5, (count,), generator=random).tolist()
        # Token 0 is the padding, whose embedding transformers does not train.
        texts = [torch.randint(1, VOCABULARY, (length,), generator=random).tolist() for length in lengths]
        labels = torch.randint(0, 3, (count,), generator=random)
        lines = [
            json.dumps({"text": " ".join(f"w{token}" for token in text), "label": label})
            for text, label in zip(texts, labels.tolist())
        ]
        path.write_text("\n".join(lines))
        rows = [([START, *text] + [0] * CONTEXT)[:CONTEXT] for text in texts]
        seen = [([1] * (len(text) + 1) + [0] * CONTEXT)[:CONTEXT] for text in texts]
        # Every tenth text is held out.
        self.trained = [text for text in range(count) if text % 10 != 9]
        self.tokens, self.seen, self.labels = torch.tensor(rows), torch.tensor(seen), labels

    def batch(self, step):
        """Returns the tokens of a step, which of them are no padding, and the labels. Each text comes once an epoch, in the
        order of stageline-data."""
        at = [self.trained[sample] for sample in of_step(step, len(self.trained))]
        return self.tokens[at], self.seen[at], self.labels[at]

    @staticmethod
    def loss(model, tokens, seen, labels):
        return torch.nn.functional.cross_entropy(model(tokens, attention_mask=seen).logits, labels)


def kept_apart(begins, dtype):
    """Returns the arguments of a model that keep the documents of a sample apart: positions that restart at each document, and
    a causal mask with a block for each document."""
    if begins is None:
        return {}
    length = begins.shape[1]
    sees = (begins[:, :, None] == begins[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)
    return {"position_ids": torch.arange(length) - begins, "attention_mask": mask[:, None]}


def train(model, data, backwards=False):
    """Trains in a plain loop with PyTorch's AdamW, and returns the loss and the gradient norm of every step.

    With `backwards`, the samples of each batch are in the opposite order, which changes nothing but the rounding.
    """
    parameters, found = list(model.parameters()), []
    decayed = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim == 1]  # norms and biases
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
    for step in range(STEPS):
        batch = data.batch(step)
        loss = data.loss(model, *[part if part is None or not backwards else part.flip(0) for part in batch])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, data.peak)
        optimizer.step()
        found.append((loss.item(), norm.item()))
    return found


def trained_by_pytorch(source, data, dtype=torch.float32, backwards=False):
    """Returns the losses and gradient norms of a training with PyTorch, and the tensors of the trained model."""
    model, trained = data.model(source)
    with InF64() if dtype == torch.float64 else contextlib.nullcontext():
        found = train(model.to(dtype), data, backwards)
    return found, trained()


def learned(path, tensor):
    """Returns a trained tensor without the biases of keys, which learn nothing.

    They shift all scores of a query alike, so their gradients are 0 but for rounding, which Adam scales up to whole steps.
    """
    if path.endswith("key.bias"):
        return torch.zeros(1)
    if not path.endswith("c_attn.bias"):
        return tensor
    query, _, value = tensor.chunk(3)
    return torch.cat([query, value])


def by_new_names(tensors):
    """Returns tensors with the names that transformers gives to those of TensorFlow."""
    return {path.replace(".gamma", ".weight").replace(".beta", ".bias"): tensor for path, tensor in tensors.items()}


def differences(training, other):
    """Returns the largest relative differences of a loss and of a gradient norm of two trainings, the largest difference of
    a parameter, and the name of this parameter."""
    (steps, tensors), (other_steps, other_tensors) = training, other
    pairs = list(zip(steps, other_steps))
    of_steps = [max(abs(found[part] - expected[part]) / expected[part] for found, expected in pairs) for part in (0, 1)]
    apart = {
        path: (learned(path, tensor).double() - learned(path, other_tensors[path]).double()).abs().max().item()
        for path, tensor in tensors.items()
    }
    worst = max(apart, key=apart.get)
    return [*of_steps, apart[worst]], worst


def shown(figures):
    return ", ".join(f"{figure:.1e}" for figure in figures)


# The settings of the trainings that are compared with PyTorch.
SETTINGS = {
    "steps": STEPS, "schedule_steps": STEPS, "micro_batches": 3, "micro_batch_size": 2, "learning_rate": PEAK,
    "warm_up": WARM_UP, "clip": 1.0, "weight_decay": 0.1,
}


def compare_with_pytorch(table, what, folder, data):
    """Compares a training in Stageline, whose model, log and export are in `folder`, with a plain loop in PyTorch."""
    lines = map(json.loads, (folder / "log.jsonl").open())
    steps = [(line["loss"], line["gradient_norm"]) for line in lines if "step" in line]
    if len(steps) != STEPS:
        raise RuntimeError(f"the log has {len(steps)} steps")
    source, ours = folder / "source", (steps, by_new_names(tensors(folder / "export")))
    theirs, exact = trained_by_pytorch(source, data), trained_by_pytorch(source, data, torch.float64)
    # The order of samples is one choice of roundings among many, so the error of PyTorch is the larger one of two orders.
    errors = [differences(run, exact)[0] for run in (theirs, trained_by_pytorch(source, data, backwards=True))]
    error = [max(pair) for pair in zip(*errors)]
    found, worst = differences(ours, theirs)
    what = f"{what}, {STEPS} steps of AdamW: loss, gradient norm, parameters"
    of_stageline = shown(differences(ours, exact)[0])
    passed = all(figure <= bound for figure, bound in zip(found, BOUNDS))
    table.row(what, f"{shown(found)} ({worst}); from f64: {of_stageline}", shown(BOUNDS), passed)
    passed = all(figure <= bound for figure, bound in zip(error, FROM_F64))
    table.row(f"{what}, PyTorch from f64", shown(error), shown(FROM_F64), passed)


def compare_training(table, finetune, name, folder):
    """Compares 50 steps with a plain loop in PyTorch; of a tied model also the exports of three plans."""
    source, log, data = folder / "source", folder / "log.jsonl", folder / "rows.json"
    source.mkdir(parents=True)
    save(name, source, deviation=DEVIATIONS.get(name, DEVIATION))
    rows = token_rows(data, 13, length_of(name, 17) + 1, seed=2)
    plans, is_tied = {"export": {"stages": 2, "log": log}}, MODELS[name]().tie_word_embeddings
    if is_tied:
        plans |= {"three": {"stages": 3, "schedule": "zb-h1", "recompute": "full"}, "one": {"stages": 1}}
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(finetune, model=source, data=data, **SETTINGS, **plan, export=folder / to)
            for to, plan in plans.items()
        ]
    for run in runs:
        run.result()
    compare_with_pytorch(table, name, folder, Rows(rows))
    if is_tied:
        exports = [[(folder / to / file).read_bytes() for file in weights(folder / to)] for to in plans]
        same = sum(export == exports[0] for export in exports)
        table.row(f"{name}, {STEPS} steps: plans with the same export", same, "3", same == 3)


def compare_documents(table, finetune, name, folder):
    """Compares 50 steps on samples of several documents, each trained on as if it were alone, with PyTorch."""
    source, path = folder / "source", folder / "documents.jsonl"
    source.mkdir(parents=True)
    save(name, source)
    data = Packed(path)
    finetune(
        model=source, data=path, documents="separate", context=CONTEXT, held_out=0, seed=SEED, **SETTINGS, stages=2,
        log=folder / "log.jsonl", export=folder / "export",
    )
    compare_with_pytorch(table, f"{name}, separate documents", folder, data)


def compare_answers(table, finetune, name, folder):
    """Compares 50 steps on completions and conversations, several in a sample, with PyTorch on each in a row of its own."""
    source, path = folder / "source", folder / "answers.jsonl"
    source.mkdir(parents=True)
    save(name, source)
    data = Answers(source, path)
    said = finetune(
        model=source, data=path, context=CONTEXT, held_out=0, seed=SEED, **SETTINGS, stages=2,
        log=folder / "log.jsonl", export=folder / "export",
    )
    packed = f"{BATCH} samples of {CONTEXT} tokens"
    table.row(f"{name}, answers: {2 * BATCH} documents", packed if packed in said else said[:200], packed, packed in said)
    compare_with_pytorch(table, f"{name}, answers", folder, data)


def adapters_of(folder):
    """Returns the LoRA adapters in a folder as PEFT reads them, and what differs in their files from PEFT's own."""
    files = {path.name for path in folder.iterdir()} - {"README.md"}
    other = "" if files == {"adapter_config.json", "adapter_model.safetensors"} else f"files {sorted(files)}"
    return peft.load_peft_weights(str(folder), device="cpu"), other


def fault_of_adapters(source, folder):
    """Returns what PEFT says of a folder with adapters of the model in `source`; "" if it takes all of its tensors."""
    found, other = adapters_of(folder)
    model = peft.get_peft_model(load(source), peft.PeftConfig.from_pretrained(folder))
    wanted = peft.get_peft_model_state_dict(model)
    shapes = [{name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (wanted, found)]
    return other or ("" if shapes[0] == shapes[1] else f"other tensors: {sorted(set(shapes[0].items()) ^ set(shapes[1].items()))}")


def compare_adapters(table, finetune, name, folder):
    """Compares logits and 50 steps of a model with LoRA adapters with PEFT, and both exports; then checks new adapters."""
    source, adapter, rows = folder / "source", folder / "adapter", folder / "rows.json"
    source.mkdir(parents=True)
    save(name, source)
    settings = ADAPTED[name]
    torch.manual_seed(9)
    model = peft.get_peft_model(load(source), peft.LoraConfig(**settings, task_type="CAUSAL_LM", init_lora_weights=False))
    model.save_pretrained(adapter)
    tokens = token_rows(rows, 13, 18, seed=2)
    with torch.no_grad():
        theirs, without = model.eval()(tokens).logits, load(source)(tokens).logits
    found, wrong = [], set()
    for stages in (1, 2, 3):
        out, merged, apart = (folder / f"{part}-{stages}" for part in ("logits", "merged", "apart"))
        finetune(
            model=source, adapter=adapter, steps=0, stages=stages, logits=rows, out=out, export=merged, export_adapter=apart
        )
        found.append(load_file(out)["logits"])
        (ours, other), (same, _) = adapters_of(apart), adapters_of(adapter)
        wrong.add(other)
        if ours.keys() != same.keys() or not all(has_same_bits(ours[key], same[key]) for key in ours):
            wrong.add("other adapters")
    if not all(has_same_bits(found[0], logits) for logits in found):
        wrong.add("logits of other numbers of stages")
    compare_values(table, f"{name}, LoRA: logits", found[0], theirs)
    distance = ((without - theirs).abs().max() / theirs.abs().max()).item()
    table.row(f"{name}, LoRA: change of the logits", f"{distance:.1e}", "at least 1e-2", distance > 1e-2)
    with torch.no_grad():
        compare_values(table, f"{name}, LoRA: logits of the merged export", load(folder / "merged-2")(tokens).logits, theirs)
    table.row(f"{name}, LoRA: differences of bits", "; ".join(sorted(wrong - {""})) or "none", "none", wrong == {""})
    plans = {"export": {"stages": 2}, "three": {"stages": 3, "schedule": "zb-h1", "recompute": "full"}, "one": {"stages": 1}}
    for to, plan in plans.items():
        finetune(
            model=source, adapter=adapter, data=rows, **SETTINGS, **plan, log=folder / "log.jsonl", export_adapter=folder / to
        )
    compare_with_pytorch(table, f"{name}, LoRA", folder, Adapted(tokens, adapter))
    exports = [(folder / to / "adapter_model.safetensors").read_bytes() for to in plans]
    same = sum(export == exports[0] for export in exports)
    table.row(f"{name}, LoRA, {STEPS} steps: plans with the same export", same, "3", same == 3)
    targets = r"self_attn|c_attn"
    made = {stages: folder / f"new-{stages}" for stages in (1, 3)}
    for stages, to in made.items():
        finetune(
            model=source, lora=6, lora_targets=targets, data=rows, steps=0 if stages == 1 else 2, stages=stages,
            export_adapter=to, learning_rate=PEAK, warm_up=0,
        )
    wrong = {fault_of_adapters(source, to) for to in (*made.values(), folder / "export")} - {""}
    new = adapters_of(made[1])[0]
    for key, tensor in new.items():
        bound = tensor.shape[1] ** -0.5
        is_zero = not tensor.any()
        fits = is_zero if "lora_B" in key else 0.9 * bound < tensor.abs().max().item() <= bound
        wrong |= set() if fits else {f"{key}: {tensor.abs().max().item()}"}
    if all(has_same_bits(new[key], tensor) for key, tensor in adapters_of(made[3])[0].items() if "lora_B" in key):
        wrong.add("two steps train nothing")
    table.row(f"{name}, new LoRA adapters in PEFT", "; ".join(sorted(wrong)) or "all fit", "all fit", not wrong)


def compare_own(table, finetune, name, folder):
    """Compares 50 steps of a model of one's own, whose weights are those of a PyTorch model, and the exports of three plans."""
    source, path = folder / "source", folder / "texts.jsonl"
    source.mkdir(parents=True)
    save(name, source)
    # The first BERTs of the hub have the names that their norms had in TensorFlow.
    old = {
        path.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for path, tensor in load_file(source / "model.safetensors").items()
    }
    save_file(old, source / "model.safetensors", metadata={"format": "pt"})
    data, program = Texts(path), Finetune(finetune.program.with_name(name), finetune.timeout)
    plans = {"export": {"stages": 2}, "three": {"stages": 3, "schedule": "gpipe", "recompute": "full"}, "one": {"stages": 1}}
    for to, plan in plans.items():
        program(
            model=source, data=path, context=CONTEXT, seed=SEED, **SETTINGS, **plan, log=folder / "log.jsonl", export=folder / to,
        )
    compare_with_pytorch(table, f"{name}, of its own layers", folder, data)
    exports = [(folder / to / "model.safetensors").read_bytes() for to in plans]
    same = sum(export == exports[0] for export in exports)
    table.row(f"{name}, {STEPS} steps: plans with the same export", same, "3", same == 3)
    # A model without a head and without classes gets both.
    base, new = folder / "base", folder / "new"
    shutil.copytree(source, base)
    save_file(
        {path: tensor for path, tensor in old.items() if not path.startswith("classifier.")}, base / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({key: config[key] for key in config if "2" not in key}))
    program(model=base, new_head=True, data=path, context=CONTEXT, steps=1, stages=2, export=new)
    wrong = set()
    for export in (folder / "export", new):
        model, info = data.kind.from_pretrained(export, output_loading_info=True)
        wrong |= {f"{kind}: {sorted(keys)}" for kind, keys in info.items() if keys}
        wrong |= set() if model.num_labels == 3 else {f"{model.num_labels} classes"}
    table.row(f"{name}: what from_pretrained says of exports", ", ".join(sorted(wrong)) or "nothing", "nothing", not wrong)


def compare_large(table, finetune, name, folder):
    """Compares logits, the export and 50 steps of a model with as many parameters as models of the hub have."""
    source, out, export = (folder / part for part in ("source", "logits.safetensors", "untrained"))
    samples, peak = 2, 1e-5
    source.mkdir(parents=True)
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(LARGE[name]())
    model.save_pretrained(source)
    rows = token_rows(folder / "rows.json", 13, 65, seed=2, vocabulary=model.config.vocab_size)
    finetune(model=source, steps=0, stages=3, logits=folder / "rows.json", out=out, export=export)
    ours = load_file(out)["logits"]
    with torch.no_grad():
        theirs = load(source)(rows).logits
    compare_values(table, f"{name}, {model.num_parameters()} parameters: logits in f32", ours, theirs)
    wrong = difference_of_export(source, export)
    table.row(f"{name}: differences of the export", wrong or "none", "none", not wrong)
    del model, ours, theirs
    settings = SETTINGS | {"micro_batches": samples, "micro_batch_size": 1, "learning_rate": peak, "stages": 2}
    finetune(model=source, data=folder / "rows.json", **settings, log=folder / "log.jsonl", export=folder / "export")
    compare_with_pytorch(table, f"{name} at a rate of {peak}", folder, Rows(rows, samples, peak))


def compare_frozen(table, finetune, name, folder):
    """Checks that three steps keep the bits of frozen tensors, and change all others."""
    source, export, data = folder / "source", folder / "export", folder / "rows.json"
    source.mkdir(parents=True)
    save(name, source)
    token_rows(data, 6, 18, seed=3)
    finetune(
        model=source, data=data, freeze="embed|wte", steps=3, micro_batches=3, micro_batch_size=2, learning_rate=PEAK,
        warm_up=0, export=export,
    )
    before, after = tensors(source), tensors(export)
    kept = {path for path, tensor in before.items() if has_same_bits(tensor, after[path])}
    frozen = {path for path in before if "embed" in path or "wte" in path}
    found = f"{len(kept)} of {len(before)} tensors unchanged"
    table.row(f"{name}, frozen embeddings", found, f"{len(frozen)}", kept == frozen and before.keys() == after.keys())


def compare_configuration(table, finetune, name, folder):
    """Compares the logits of a model whose config.json has other fields than those that transformers writes."""
    of, fields = CONFIGURATIONS[name]
    source, out, rows = folder / "source", folder / "logits.safetensors", folder / "rows.json"
    source.mkdir(parents=True)
    save(of, source)
    path = source / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({field: value for field, value in config.items() if value is not REMOVED}))
    tokens = token_rows(rows, 5, 33, seed=1)
    finetune(model=source, steps=0, stages=2, logits=rows, out=out)
    with torch.no_grad():
        theirs = load(source)(tokens).logits
    ours = load_file(out)["logits"]
    compare_values(table, f"{name}, float32, 33 tokens: logits", ours, theirs)


def compare_folder(table, finetune, name, folder):
    """Compares the logits and the export of a model in a folder as the hub has it."""
    of, change = FOLDERS[name]
    source, out, export, rows = (folder / part for part in ("source", "logits.safetensors", "export", "rows.json"))
    source.mkdir(parents=True)
    save(of, source, torch.bfloat16 if change is with_former_type else torch.float32)
    path, file = source / "config.json", source / "model.safetensors"
    config, tensors_of_file = json.loads(path.read_text()), load_file(file)
    change(tensors_of_file, config)
    save_file(tensors_of_file, file, metadata={"format": "pt"})
    path.write_text(json.dumps(config))
    tokens = token_rows(rows, 5, length_of(of, 17), seed=1)
    finetune(model=source, steps=0, stages=2, logits=rows, out=out, export=export)
    ours, model = load_file(out)["logits"], load(source)
    with torch.no_grad():
        theirs = model.float()(tokens).logits
    compare_values(table, f"{name}: logits in f32", ours, theirs)
    wrong = difference_of_export(source, export)
    table.row(f"{name}: differences of the export", wrong or "none", "none", not wrong)


def compare_generation(table, finetune, name, folder):
    """Compares a greedy generation by the settings of the model's folder with `generate`."""
    source = folder / "source"
    source.mkdir(parents=True)
    save(GENERATIONS[name], source, deviation=0.2)
    prompt = token_rows(folder / "rows.json", 1, 11, seed=1)
    prompt = torch.cat([torch.tensor([[START]]), prompt], 1)
    words = " ".join(f"w{token}" for token in prompt[0, 1:].tolist())

    def new_tokens():
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
        return load(source).generate(prompt, attention_mask=torch.ones_like(prompt), **settings)[0, prompt.shape[1] :].tolist()

    plain = new_tokens()
    ends = [next(token for token in range(VOCABULARY) if token not in plain), plain[7]]
    settings = {"eos_token_id": ends} if name == "generation-ends" else {"repetition_penalty": 1.3}
    if name == "generation-old-penalty":
        (source / "generation_config.json").unlink()
        settings |= json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(settings))
    else:
        (source / "generation_config.json").write_text(json.dumps(settings))
    new = new_tokens()
    printed = finetune(model=source, steps=0, stages=2, prompt=words, temperature=0, new_tokens=NEW_TOKENS)
    ours = printed.strip().splitlines()[-1].split()[prompt.shape[1] - 1 :]
    theirs = [f"w{token}" for token in new if name != "generation-ends" or token not in ends]  # ends are not printed
    same = sum(our == their for our, their in zip(ours, theirs))
    passed = ours == theirs and new != plain
    table.row(f"{name}: greedy tokens of generate", f"{same} of {len(ours)}", f"{len(theirs)}, unlike without settings", passed)


def main():
    usual = [*MODELS, *CONFIGURATIONS, *FOLDERS, *GENERATIONS, *OWN]
    known = [*usual, *LARGE]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "target/debug/examples/finetune")
    parser.add_argument("--only", metavar="NAMES", help=f"models to check, of {','.join(known)}")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else usual
    if unknown := set(names) - set(known):
        parser.error(f"--only: unknown models {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if not arguments.program.exists():
        sys.exit(f"{arguments.program} is missing; run `cargo build --features models --example finetune --example bert`")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    others = dict.fromkeys(CONFIGURATIONS, compare_configuration) | dict.fromkeys(FOLDERS, compare_folder)
    others |= dict.fromkeys(GENERATIONS, compare_generation) | dict.fromkeys(LARGE, compare_large)
    others |= dict.fromkeys(OWN, compare_own)
    table, begin = Table(), time.monotonic()
    finetune = Finetune(arguments.program, timeout=1200 if set(names) & set(LARGE) else 120)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if compare := others.get(name):
                table.check(name, lambda: compare(table, finetune, name, Path(folder, name)))
                continue
            for number, variant in enumerate(VARIANTS):
                table.check(name, lambda: compare_logits(table, finetune, name, variant, Path(folder, f"{name}-{number}")))
            table.check(name, lambda: compare_training(table, finetune, name, Path(folder, f"{name}-trained")))
            if name in PACKED:
                table.check(name, lambda: compare_documents(table, finetune, name, Path(folder, f"{name}-documents")))
                table.check(name, lambda: compare_answers(table, finetune, name, Path(folder, f"{name}-answers")))
            if name in ADAPTED:
                table.check(name, lambda: compare_adapters(table, finetune, name, Path(folder, f"{name}-adapted")))
            table.check(name, lambda: compare_frozen(table, finetune, name, Path(folder, f"{name}-frozen")))
    failed = table.failed
    print(f"{len(table.results) - failed} checks passed, {failed} failed, {time.monotonic() - begin:.0f} s")
    sys.exit(table.has_failed())


if __name__ == "__main__":
    main()
