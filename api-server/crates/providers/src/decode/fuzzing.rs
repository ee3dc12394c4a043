//! What holds for every answer of every upstream, for tests and the fuzzer.

use engine::ModelEvent;

use super::{Decoder, Reader};
use crate::failure::Fault;
#[cfg(feature = "fuzzing")]
use crate::{anthropic, openai};

/// What is said in the pieces of an answer, and the fault that it ends with.
pub(crate) fn read<'a>(
    reader: impl Reader,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<ModelEvent>, Option<Fault>) {
    let (mut decoder, mut events) = (Decoder::new(reader), Vec::new());
    for piece in pieces {
        if let Err(fault) = decoder.push(piece, &mut events) {
            return (events, Some(fault));
        }
    }
    match decoder.at_end() {
        Ok(more) => {
            events.extend(more);
            (events, None)
        }
        Err(fault) => (events, Some(fault)),
    }
}

/// Blocks come one at a time, and nothing comes after the end.
pub(crate) fn check_order(events: &[ModelEvent]) {
    let (mut open, mut ended) = (false, false);
    for event in events {
        assert!(!ended, "after the end: {event:?}");
        match event {
            ModelEvent::Open(_) => assert!(!std::mem::replace(&mut open, true), "two at once: {event:?}"),
            ModelEvent::Delta(_) => assert!(open, "of no block: {event:?}"),
            ModelEvent::Close => assert!(std::mem::replace(&mut open, false), "nothing to close"),
            ModelEvent::End { .. } => {
                assert!(!open, "a block is left open");
                ended = true;
            }
            ModelEvent::Start { .. } => {}
            ModelEvent::Fail(_) => unreachable!("readers tell faults by themselves"),
        }
    }
}

/// An answer in either dialect: the same in pieces of `size` bytes as in one, and in order.
///
/// # Panics
/// When it is not so.
#[cfg(feature = "fuzzing")]
pub fn stream(bytes: &[u8], size: usize) {
    let size = size.max(1);
    let whole = read(anthropic::Stream::default(), [bytes]);
    assert_eq!(read(anthropic::Stream::default(), bytes.chunks(size)), whole);
    check_order(&whole.0);
    let whole = read(openai::Stream::default(), [bytes]);
    assert_eq!(read(openai::Stream::default(), bytes.chunks(size)), whole);
    check_order(&whole.0);
}
