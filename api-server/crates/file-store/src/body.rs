//! Content on its way out.

use std::io;

use bytes::Bytes;
use futures_util::StreamExt;

use crate::Body;

/// The body, if it has this length: what is longer is cut, what is shorter ends in an error.
pub(crate) fn exactly(size: u64, body: Body<'static>) -> Body<'static> {
    Box::pin(futures_util::stream::unfold((body, size, false), |(mut body, left, over)| async move {
        if over || left == 0 {
            return None;
        }
        let piece: io::Result<Bytes> = match body.next().await {
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("file ends {left} bytes early"))),
            Some(Ok(mut piece)) => {
                piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                Ok(piece)
            }
            Some(Err(error)) => Err(error),
        };
        let (left, over) = match &piece {
            Ok(piece) => (left - piece.len() as u64, false),
            Err(_) => (left, true),
        };
        Some((piece, (body, left, over)))
    }))
}
