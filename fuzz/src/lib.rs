//! What the fuzz targets do to the bytes they are given, one a file.
//!
//! Under libFuzzer, from the root of the project, with `cargo install cargo-fuzz`:
//!
//! ```text
//! cargo +nightly fuzz run plan_csv fuzz/corpus/plan_csv fuzz/seeds/plan_csv
//! ```
//!
//! The tests of what is under test include these files too, and run every seed and some thousand mutations of them
//! on the stable compiler. So an input that was found and mended becomes a seed.

pub mod configuration;
pub mod corpus;
pub mod manifest;
pub mod mutations;
pub mod plan_csv;
pub mod plan_text;
pub mod restore;
