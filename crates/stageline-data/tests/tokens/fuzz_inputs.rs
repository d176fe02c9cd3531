//! Runs the fuzzer's functions for token files, tokenizers and chat templates on their stored inputs (seeds) and on
//! random changes of them.

#[cfg(feature = "tokenizers")]
#[path = "../../../../fuzz/src/chat_template.rs"]
mod chat_template;
#[path = "../../../../fuzz/src/mutations.rs"]
mod mutations;
#[path = "../../../../fuzz/src/token_file.rs"]
mod token_file;
#[cfg(feature = "tokenizers")]
#[path = "../../../../fuzz/src/tokenizer.rs"]
mod tokenizer;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/token_file");

/// Texts that the test inserts at random into the fuzzer's stored inputs for token files. They are separators and
/// numbers, some of which are at the limits of their range.
const WORDS: [&str; 16] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    ",",
    "|",
    "?",
    "stagetok",
    "65536",
    "65537",
    "4294967295",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "\0\0\0\0",
];

#[test]
fn any_bytes_are_a_token_file_or_an_error() {
    let seeds = mutations::seeds(SEEDS);
    assert!(seeds.len() >= 30, "{} seeds", seeds.len());
    mutations::run(&seeds, &WORDS, 5_000, token_file::token_file);
}

#[cfg(feature = "tokenizers")]
#[test]
fn any_bytes_are_a_tokenizer_or_an_error() {
    /// Texts that the test inserts at random into the fuzzer's stored tokenizer files (`tokenizer.json`). They are
    /// numbers, other JSON values, and names of tokenizer models.
    const WORDS: [&str; 12] = [
        "0",
        "1",
        "4294967295",
        "18446744073709551615",
        "null",
        "true",
        "[]",
        "{}",
        "\"\"",
        "\"BPE\"",
        "\"WordPiece\"",
        "\"Unigram\"",
    ];
    let seeds = mutations::seeds(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/tokenizer"));
    assert!(seeds.len() >= 9, "{} seeds", seeds.len());
    mutations::run(&seeds, &WORDS, 2_000, tokenizer::tokenizer);
}

#[cfg(feature = "tokenizers")]
#[test]
fn any_bytes_are_a_chat_template_or_an_error() {
    /// Texts that the test inserts at random into the fuzzer's stored templates: tags, operators and large numbers.
    const WORDS: [&str; 14] = [
        "{{",
        "}}",
        "{%",
        "-%}",
        "messages",
        "[::-1]",
        "| tojson(indent=4)",
        " * 99999999",
        "{% generation %}",
        "{% endgeneration %}",
        "{% for a in range(9) %}",
        "{% endfor %}",
        ".split('a')",
        "\u{fdd0}",
    ];
    let seeds = mutations::seeds(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/chat_template"));
    assert!(seeds.len() >= 20, "{} seeds", seeds.len());
    mutations::run(&seeds, &WORDS, 500, chat_template::chat_template);
}
