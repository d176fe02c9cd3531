//! Tests of language models on CPU pipelines: cuts, exports, generation and refusals. The values of the layers are
//! compared with transformers by `scripts/transformers-parity.py`.

mod before_training;
mod folders;
mod generation;
mod seeds;
mod toy;
mod training;
