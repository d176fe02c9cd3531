#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stageline_fuzz::model_folder::model_folder(bytes));
