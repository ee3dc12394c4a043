//! Frames: what the answer of a run is made of. One byte of kind, four of length (big-endian), the payload.

use crate::Exit;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Largest payload of a frame, in bytes; a longer one is an error, never an allocation.
pub const MAX_FRAME_PAYLOAD: usize = 64 * 1024;

const HEADER: usize = 5;

/// One piece of a run's answer. After [`Frame::Exit`] nothing follows; an answer without it did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The command runs now; before this it waited for its turn.
    Started,
    /// Bytes of stdout, at most [`MAX_FRAME_PAYLOAD`].
    Stdout(Bytes),
    /// Bytes of stderr, at most [`MAX_FRAME_PAYLOAD`].
    Stderr(Bytes),
    /// Calls for the client's tools: a JSON array of [`crate::ToolCall`], at most [`MAX_FRAME_PAYLOAD`].
    Calls(Bytes),
    /// The end.
    Exit(Exit),
}

/// Bytes that are no frame.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// The kind byte is unknown.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The length is over [`MAX_FRAME_PAYLOAD`].
    #[error("frame of {0} bytes is over the limit")]
    Length(usize),
    /// An exit frame that cannot be read.
    #[error("malformed exit frame: {0}")]
    Exit(String),
}

impl Frame {
    /// The frame as bytes. Longer output than fits one frame is cut into several.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Started => put(&mut out, b's', &[]),
            Self::Stdout(data) => data.chunks(MAX_FRAME_PAYLOAD).for_each(|chunk| put(&mut out, b'o', chunk)),
            Self::Stderr(data) => data.chunks(MAX_FRAME_PAYLOAD).for_each(|chunk| put(&mut out, b'e', chunk)),
            Self::Calls(list) => put(&mut out, b'c', list),
            // A struct of numbers and flags always serialises; an empty payload would be refused by the reader.
            Self::Exit(exit) => put(&mut out, b'x', &serde_json::to_vec(exit).unwrap_or_default()),
        }
        out.freeze()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "callers pass at most MAX_FRAME_PAYLOAD bytes")]
fn put(out: &mut BytesMut, kind: u8, payload: &[u8]) {
    out.reserve(HEADER + payload.len());
    out.put_u8(kind);
    out.put_u32(payload.len() as u32);
    out.put_slice(payload);
}

/// Turns received bytes into frames, wherever they were cut.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: BytesMut,
}

impl FrameDecoder {
    /// Takes received bytes.
    pub fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// The next whole frame, if there is one.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(header) = self.buffer.first_chunk::<HEADER>() else { return Ok(None) };
        let [kind, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_FRAME_PAYLOAD {
            return Err(FrameError::Length(length));
        }
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        let payload = self.buffer.split_to(length).freeze();
        match kind {
            b's' => Ok(Some(Frame::Started)),
            b'o' => Ok(Some(Frame::Stdout(payload))),
            b'e' => Ok(Some(Frame::Stderr(payload))),
            b'c' => Ok(Some(Frame::Calls(payload))),
            b'x' => {
                let exit = serde_json::from_slice(&payload).map_err(|e| FrameError::Exit(e.to_string()))?;
                Ok(Some(Frame::Exit(exit)))
            }
            other => Err(FrameError::Kind(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode_all(bytes: &[u8], cut: usize) -> Result<Vec<Frame>, FrameError> {
        let (mut decoder, mut frames) = (FrameDecoder::default(), Vec::new());
        for piece in bytes.chunks(cut) {
            decoder.push(piece);
            while let Some(frame) = decoder.next_frame()? {
                frames.push(frame);
            }
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(out: Vec<u8>, err: Vec<u8>, code: i32, cut in 1usize..40) {
            let frames = [
                Frame::Started,
                Frame::Stdout(out.into()),
                Frame::Stderr(err.into()),
                Frame::Calls("[]".into()),
                Frame::Exit(Exit { code, timed_out: true, ..Exit::default() }),
            ];
            let wire: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
            let expected: Vec<_> = frames.into_iter().filter(|f| !f.encode().is_empty()).collect();
            prop_assert_eq!(decode_all(&wire, cut), Ok(expected));
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>, cut in 1usize..40) {
            let _ = decode_all(&bytes, cut);
        }
    }

    #[test]
    fn long_output_is_cut_into_several_frames() {
        let wire = Frame::Stdout(vec![7; MAX_FRAME_PAYLOAD * 2 + 1].into()).encode();
        assert_eq!(decode_all(&wire, 1000).unwrap().len(), 3);
    }

    #[test]
    fn an_endless_frame_is_refused() {
        assert_eq!(decode_all(&[b'o', 0xff, 0xff, 0xff, 0xff], 9), Err(FrameError::Length(0xffff_ffff)));
        assert_eq!(decode_all(&[b'?', 0, 0, 0, 0], 9), Err(FrameError::Kind(b'?')));
    }
}
