//! Frames from a hostile sandbox, wherever they are cut: no panic, no growth, and what is read is what was written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandboxd_protocol::{FrameDecoder, MAX_FRAME_PAYLOAD};

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let mut decoder = FrameDecoder::default();
    let mut again = Vec::new();
    for piece in bytes.chunks(usize::from(*cut).max(1)) {
        decoder.push(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    let encoded = frame.encode();
                    assert!(encoded.len() <= MAX_FRAME_PAYLOAD + 5);
                    again.extend_from_slice(&encoded);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    // What was written anew reads the same.
    let mut decoder = FrameDecoder::default();
    decoder.push(&again);
    while let Ok(Some(frame)) = decoder.next_frame() {
        let length = frame.encode().len();
        assert_eq!(frame.encode(), again.drain(..length).collect::<Vec<_>>());
    }
});
