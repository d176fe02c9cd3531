#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stageline_fuzz::chat_template::chat_template(bytes));
