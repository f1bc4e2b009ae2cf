//! See `fuzz::targets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::targets::recording(input);
});
