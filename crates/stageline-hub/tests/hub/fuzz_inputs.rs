//! Runs the fuzz target of model folders on its seeds and on mutations of the seeds.

#[path = "../../../../fuzz/src/model_folder.rs"]
mod model_folder;
#[path = "../../../../fuzz/src/mutations.rs"]
mod mutations;

use crate::mutations::WORDS;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/model_folder");

#[test]
fn any_bytes_are_a_model_folder_or_an_error() {
    let seeds = mutations::seeds(SEEDS);
    assert!(seeds.len() >= 50, "{} seeds", seeds.len());
    mutations::run(&seeds, &WORDS, 5_000, model_folder::model_folder);
}
