//! The bytes of an upstream's answer as events of the turn machine, however the bytes are cut.

use engine::ModelEvent;

use crate::failure::Fault;
use crate::sse::{Event, Splitter};

/// Makes events of what an upstream streams: one for each dialect.
pub(crate) trait Reader: Send + 'static {
    /// Takes an event; an `End` among the results is the last that is asked for.
    fn read(&mut self, event: &Event) -> Result<Vec<ModelEvent>, Fault>;
    /// The stream is over, and no `End` came.
    fn at_end(&mut self) -> Result<Vec<ModelEvent>, Fault>;
}

/// Reads one answer.
#[derive(Debug)]
pub(crate) struct Decoder<R> {
    splitter: Splitter,
    reader: R,
    ended: bool,
}

impl<R: Reader> Decoder<R> {
    /// At the beginning of an answer.
    pub(crate) fn new(reader: R) -> Self {
        Self { splitter: Splitter::default(), reader, ended: false }
    }

    /// Adds the events that the next bytes complete; also with a fault, those before it. Nothing follows an `End`.
    pub(crate) fn push(&mut self, bytes: &[u8], events: &mut Vec<ModelEvent>) -> Result<(), Fault> {
        let mut split = Vec::new();
        let pushed = self.splitter.push(bytes, &mut split);
        for event in split {
            if self.ended {
                return Ok(());
            }
            events.extend(self.reader.read(&event)?);
            self.ended = matches!(events.last(), Some(ModelEvent::End { .. }));
        }
        if self.ended { Ok(()) } else { pushed.map_err(|_| Fault::Malformed("an event is too long")) }
    }

    /// The bytes are over.
    pub(crate) fn at_end(&mut self) -> Result<Vec<ModelEvent>, Fault> {
        if self.ended { Ok(Vec::new()) } else { self.reader.at_end() }
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;
