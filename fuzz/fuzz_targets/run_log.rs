#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stageline_fuzz::run_log::run_log(bytes));
