//! The functions of the fuzz targets, one per file: each reads arbitrary bytes as the input of one part of Stageline,
//! and asserts what must hold for every input.
//!
//! libFuzzer runs them from the root of the project, after `cargo install cargo-fuzz`:
//!
//! ```text
//! mkdir -p fuzz/corpus/plan_csv
//! cargo +nightly fuzz run plan_csv fuzz/corpus/plan_csv fuzz/seeds/plan_csv
//! ```
//!
//! The tests of the crates under test include these files too, and run every seed and some thousand mutations of the
//! seeds on the stable compiler. An input that failed therefore becomes a seed once it is fixed.

pub mod chat_template;
pub mod configuration;
pub mod corpus;
pub mod language_model;
pub mod manifest;
pub mod model_folder;
pub mod mutations;
pub mod plan_csv;
pub mod plan_text;
pub mod restore;
pub mod run_log;
pub mod token_file;
pub mod tokenizer;
