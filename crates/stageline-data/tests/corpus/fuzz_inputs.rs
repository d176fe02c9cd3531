//! Runs the fuzzer's function for corpora on its stored inputs (seeds) and on random changes of them.

#[path = "../../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/src/mutations.rs"]
mod mutations;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/corpus");

#[test]
fn any_small_folder_is_a_corpus_or_an_error() {
    let seeds = mutations::seeds(SEEDS);
    assert!(seeds.len() >= 10, "{} seeds", seeds.len());
    mutations::run(&seeds, &["|", "||", "000000", "123456", "\n", "é"], 2_000, corpus::corpus);
}
