#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stageline_fuzz::tokenizer::tokenizer(bytes));
