//! Tests language models on CPU pipelines: cuts (partitions into stages), exports, generation, and errors for invalid
//! models. `scripts/transformers-parity.py` compares the values of the layers with the Transformers library.

mod before_training;
mod documents;
mod folders;
mod frozen;
mod fuzz_inputs;
mod generation;
mod guide;
mod lora;
mod torch;
mod toy;
mod training;
