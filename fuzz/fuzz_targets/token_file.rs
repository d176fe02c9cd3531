#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stageline_fuzz::token_file::token_file(bytes));
